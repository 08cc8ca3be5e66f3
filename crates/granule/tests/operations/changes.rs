//! Changes that several tests make.

use granule::table::PermissionChange;
use granule_testing::stage::{AttributeChange, AttributeChangeOf, TestStage};

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
pub const fn not_accessed<S: TestStage>() -> AttributeChangeOf<S> {
    AttributeChange {
        accessed: Some(false),
        ..AttributeChange::NONE
    }
}
