//! How the next kernel arrives: registers, exception level, memory, and the digests of what it was handed.
