//! The trace of a kernel that leaves, as `granule check` sees it.
