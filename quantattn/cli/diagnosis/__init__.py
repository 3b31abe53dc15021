"""The parts of `quantattn doctor`: settings of a source, what is said of its data, and what is suggested."""
