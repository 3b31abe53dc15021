"""What `quantattn bench` measures: one file a benchmark, and what they share."""
