//! What is refused, with its line, leaving the running kernel as it was.
