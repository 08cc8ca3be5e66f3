//! What `granule boot --kexec` says of several kernels on one console.
