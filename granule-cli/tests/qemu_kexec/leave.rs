//! How a kernel leaves: CPUs off, devices quiet, and what it says before it jumps.
