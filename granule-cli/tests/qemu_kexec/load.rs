//! What is loaded, where it lies, and how it is listed, replaced and unloaded.
