"""The search over settings behind `quantattn sweep`."""
