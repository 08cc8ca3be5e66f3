//! The linear map: all of RAM at one distance from its physical address.
