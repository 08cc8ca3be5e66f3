//! Changes that several tests make.

use granule::table::{AttributeChange, PermissionChange};

/// Changes to writable and to read-only.
pub const WRITABLE: PermissionChange = PermissionChange {
    writable: Some(true),
    ..PermissionChange::NONE
};
pub const READ_ONLY: PermissionChange = PermissionChange {
    writable: Some(false),
    ..WRITABLE
};

/// The change that clears the access flag.
pub const fn not_accessed<M: Copy>() -> AttributeChange<M> {
    AttributeChange {
        accessed: Some(false),
        ..AttributeChange::NONE
    }
}
