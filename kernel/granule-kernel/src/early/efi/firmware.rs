//! The firmware's boot services, as far as the stub uses them.
//!
//! Calls and the structures of the specification are here; what they are for is not.

#![allow(unsafe_code, reason = "firmware's boot services")]

use core::ffi::c_void;
use core::ptr::{null, null_mut};
use granule_kcore::efi::description::Variable;
use uefi_raw::protocol::loaded_image::LoadedImageProtocol;
use uefi_raw::protocol::media::LoadFile2Protocol;
use uefi_raw::protocol::rng::RngProtocol;
use uefi_raw::table::boot::{AllocateType, BootServices, MemoryType};
use uefi_raw::table::configuration::ConfigurationTable;
use uefi_raw::table::system::SystemTable;
use uefi_raw::{Boolean, Guid, Handle, Status, guid};

/// The device tree in the configuration table.
const DEVICE_TREE: Guid = guid!("b1b621d5-f19c-41a5-830b-d9152c69aae0");
/// The owner of the specification's own variables, and the names of two of them: UTF-16 with a NUL at the end.
const GLOBAL: Guid = guid!("8be4df61-93ca-11d2-aa0d-00e098032b8c");
pub(super) const SECURE_BOOT: [u16; 11] = name(b"SecureBoot");
pub(super) const SETUP_MODE: [u16; 10] = name(b"SetupMode");

/// A name in UTF-16, with a NUL.
const fn name<const UNITS: usize>(text: &[u8]) -> [u16; UNITS] {
    let mut units = [0; UNITS];
    let mut at = 0;
    while at < text.len() {
        units[at] = text[at] as u16;
        at += 1;
    }
    units
}

/// Why the boot failed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    /// One line; `None` if the boot services have ended, and with them the console.
    pub(super) what: Option<&'static str>,
    pub(super) status: Status,
}

impl Failure {
    /// Something that was read is not what it must be.
    pub(super) const fn unreadable(what: &'static str) -> Self {
        Self {
            what: Some(what),
            status: Status::LOAD_ERROR,
        }
    }
}

/// Turns what is missing into a failure.
pub(super) trait OrFailure<T> {
    fn or_failure(self, status: Status, what: &'static str) -> Result<T, Failure>;
}

impl<T> OrFailure<T> for Option<T> {
    fn or_failure(self, status: Status, what: &'static str) -> Result<T, Failure> {
        self.ok_or(Failure {
            what: Some(what),
            status,
        })
    }
}

/// Turns every status but success into a failure.
pub(super) fn check(status: Status, what: &'static str) -> Result<(), Failure> {
    let done = status == Status::SUCCESS;
    done.then_some(()).or_failure(status, what)
}

/// The options and the device with which the image was started.
pub(super) struct Loaded {
    pub(super) options: &'static [u8],
    /// The device that the image was loaded from.
    pub(super) device: Handle,
}

/// The firmware, before the boot services end.
pub(super) struct Firmware {
    image: Handle,
    /// The firmware writes to it when a configuration table is installed.
    table: *const SystemTable,
    boot: &'static BootServices,
}

impl Firmware {
    /// `None` if the table has no boot services.
    ///
    /// # Safety
    ///
    /// These must be the arguments of the call by the firmware. The tables are the firmware's and stay until
    /// the boot services end; nothing here is used after that but the addresses of the tables.
    pub(super) unsafe fn new(image: Handle, table: *const SystemTable) -> Option<Self> {
        // SAFETY: the caller passes on the firmware's table.
        let boot = unsafe { table.as_ref() }?.boot_services;
        // SAFETY: an application is started while there are boot services.
        let boot = unsafe { boot.as_ref() }?;
        Some(Self { image, table, boot })
    }

    /// Prints to the firmware's console. Errors have nowhere to go.
    pub(super) fn say(&self, text: &str) {
        // SAFETY: the table stays, by the promise to `new`.
        let console = unsafe { (*self.table).stdout };
        if console.is_null() {
            return;
        }
        for letter in text.encode_utf16() {
            let string = [letter, 0];
            // SAFETY: the console is the firmware's, and the string ends with a NUL.
            let _ = unsafe { ((*console).output_string)(console, string.as_ptr()) };
        }
    }

    /// The physical address of the system table.
    pub(super) fn system_table(&self) -> u64 {
        self.table as u64
    }

    /// The system table and the list of configuration tables: start and length.
    pub(super) fn tables(&self) -> [(u64, u64); 2] {
        let (entries, count) = self.configuration();
        let bytes = (count as u64).saturating_mul(size_of::<ConfigurationTable>() as u64);
        [
            (self.system_table(), size_of::<SystemTable>() as u64),
            (entries as u64, bytes),
        ]
    }

    /// The list of configuration tables as it is now: the first entry, and the number of all.
    fn configuration(&self) -> (*const ConfigurationTable, usize) {
        // SAFETY: the table stays, by the promise to `new`, and the firmware writes to it only inside a call.
        unsafe {
            let count = (*self.table).number_of_configuration_table_entries;
            ((*self.table).configuration_table, count)
        }
    }

    /// The table of this kind, if the firmware has one.
    pub(super) fn configured(&self, kind: &Guid) -> Option<*const u8> {
        let (entries, count) = self.configuration();
        if entries.is_null() {
            return None;
        }
        // SAFETY: the firmware's list has as many entries as it states, and changes only inside a call.
        let entries = unsafe { core::slice::from_raw_parts(entries, count) };
        let entry = entries.iter().find(|it| it.vendor_guid == *kind)?;
        let start = entry.vendor_table.cast::<u8>().cast_const();
        (!start.is_null()).then_some(start)
    }

    /// Puts a table of this kind into the list, or takes it out if `table` is null.
    pub(super) fn configure(&self, kind: &'static Guid, table: *const u8) -> Status {
        // SAFETY: the firmware copies the two pointers, and reads behind neither of them.
        unsafe { (self.boot.install_configuration_table)(kind, table.cast()) }
    }

    /// The firmware's device tree, if there is one.
    pub(super) fn device_tree(&self) -> Result<Option<&'static [u8]>, Failure> {
        let Some(start) = self.configured(&DEVICE_TREE) else {
            return Ok(None);
        };
        // SAFETY: a device tree begins with its size.
        let head = unsafe { core::slice::from_raw_parts(start, 8) };
        let bytes = granule_boot::tree::total_size(head)
            .map_err(|error| Failure::unreadable(error.text()))?;
        // SAFETY: the firmware vouches for the whole tree. It stays where it is: nobody frees memory
        // between here and the copy's entry.
        Ok(Some(unsafe {
            core::slice::from_raw_parts(start, bytes as usize)
        }))
    }

    /// Returns the options and the device with which the image was started.
    pub(super) fn loaded_image(&self) -> Result<Loaded, Failure> {
        let loaded = self.protocol::<LoadedImageProtocol>(self.image, &LoadedImageProtocol::GUID);
        // SAFETY: the protocol of the running image stays while it runs.
        let loaded = loaded.and_then(|loaded| unsafe { loaded.as_ref() });
        let loaded = loaded.or_failure(
            Status::LOAD_ERROR,
            "the firmware has no Loaded Image protocol of this image",
        )?;
        let (start, bytes) = (loaded.load_options.cast::<u8>(), loaded.load_options_size);
        let options = if start.is_null() {
            &[]
        } else {
            // SAFETY: the starter of the image gives the length of its options.
            unsafe { core::slice::from_raw_parts(start, bytes as usize) }
        };
        Ok(Loaded {
            options,
            device: loaded.device_handle,
        })
    }

    pub(super) fn protocol<T>(&self, handle: Handle, guid: &Guid) -> Option<*mut T> {
        let mut found = null_mut::<c_void>();
        // SAFETY: the pointers are to this function's variables.
        let status = unsafe { (self.boot.handle_protocol)(handle, guid, &mut found) };
        (status == Status::SUCCESS && !found.is_null()).then(|| found.cast())
    }

    /// Fills `into` by the firmware's random number generator. False if there is none, or it fails.
    pub(super) fn random(&self, into: &mut [u8]) -> bool {
        let mut found = null_mut::<c_void>();
        // SAFETY: the pointers are to this function's variables.
        let status =
            unsafe { (self.boot.locate_protocol)(&RngProtocol::GUID, null_mut(), &mut found) };
        let generator = found.cast::<RngProtocol>();
        if status != Status::SUCCESS || generator.is_null() {
            return false;
        }
        // SAFETY: the firmware's interface writes as many bytes as requested; no algorithm means its
        // default.
        let status =
            unsafe { ((*generator).get_rng)(generator, null(), into.len(), into.as_mut_ptr()) };
        status == Status::SUCCESS
    }

    /// A variable of the specification's that is a byte. The name ends with a NUL.
    pub(super) fn variable(&self, name: &[u16]) -> Variable {
        // SAFETY: the table stays, by the promise to `new`.
        let services = unsafe { (*self.table).runtime_services };
        // SAFETY: the services are those of the running firmware, or missing.
        let Some(services) = (unsafe { services.as_ref() }) else {
            return Variable::Unread;
        };
        let (mut value, mut bytes) = (0_u8, 1);
        // SAFETY: the name ends with a NUL, and the other pointers are to constants and variables of this
        // function; the value has room for as many bytes as are requested.
        let status = unsafe {
            (services.get_variable)(name.as_ptr(), &GLOBAL, null_mut(), &mut bytes, &mut value)
        };
        match (status, bytes) {
            (Status::SUCCESS, 1) => Variable::Is(value),
            (Status::NOT_FOUND, _) => Variable::Missing,
            _ => Variable::Unread,
        }
    }

    /// The file that a boot loader offers at this device path.
    pub(super) fn offered(&self, path: &'static [u8]) -> Option<Offered> {
        let mut path = path.as_ptr().cast();
        let mut handle = null_mut();
        // SAFETY: the path has an end node, and the pointers are to this function's variables.
        let status = unsafe {
            (self.boot.locate_device_path)(&LoadFile2Protocol::GUID, &mut path, &mut handle)
        };
        if status != Status::SUCCESS {
            return None;
        }
        let file = self.protocol::<LoadFile2Protocol>(handle, &LoadFile2Protocol::GUID)?;
        let load = |bytes: &mut usize, to: *mut c_void| {
            // SAFETY: the interface is that of a handle of the firmware, `path` is what is left of the path,
            // and `to` is null or has `bytes` bytes.
            unsafe { ((*file).load_file)(file, path, Boolean::FALSE, bytes, to) }
        };
        let mut bytes = 0;
        let status = load(&mut bytes, null_mut());
        Some(Offered {
            file,
            path,
            bytes,
            status,
        })
    }

    /// Allocates pages: at this address, or anywhere.
    pub(super) fn allocate(&self, at: Option<u64>, pages: usize) -> Result<u64, Status> {
        let mut start = at.unwrap_or_default();
        let kind = match at {
            Some(_) => AllocateType::ADDRESS,
            None => AllocateType::ANY_PAGES,
        };
        let memory = MemoryType::LOADER_DATA;
        // SAFETY: the pointer is to this function's variable.
        let status = unsafe { (self.boot.allocate_pages)(kind, memory, pages, &mut start) };
        match status {
            Status::SUCCESS => Ok(start),
            error => Err(error),
        }
    }

    /// Frees pages.
    ///
    /// # Safety
    ///
    /// They must be of `allocate`, and nothing may refer to them.
    pub(super) unsafe fn free(&self, start: u64, pages: usize) {
        // SAFETY: the caller's promise. An error would mean that they are free already.
        let status = unsafe { (self.boot.free_pages)(start, pages) };
        // As the last step the call would be a plain branch, which `cargo xtask image` does not take for a call of
        // the firmware.
        let _ = core::hint::black_box(status);
    }

    /// Writes the memory map to `into`. The length is that of the map, even if there is no room for it.
    pub(super) fn memory_map(&self, into: &mut [u8]) -> (Status, MapFacts) {
        let mut facts = MapFacts {
            bytes: into.len(),
            ..MapFacts::default()
        };
        let to = if into.is_empty() {
            null_mut()
        } else {
            into.as_mut_ptr().cast()
        };
        // SAFETY: the firmware writes at most the given number of bytes, and the other pointers are to
        // this function's variables.
        let status = unsafe {
            (self.boot.get_memory_map)(
                &mut facts.bytes,
                to,
                &mut facts.key,
                &mut facts.descriptor_bytes,
                &mut facts.version,
            )
        };
        (status, facts)
    }

    /// Ends the boot services, if the memory map still is the one with this key.
    ///
    /// From the first call on, whatever comes of it, the firmware may have shut down all but the map, this
    /// call and the services for memory: there is no console either.
    pub(super) fn exit(&self, key: usize) -> Status {
        // SAFETY: after success nothing of the firmware is called any more.
        unsafe { (self.boot.exit_boot_services)(self.image, key) }
    }
}

/// The sizes and the key of the firmware's memory map.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MapFacts {
    pub(super) bytes: usize,
    pub(super) key: usize,
    pub(super) descriptor_bytes: usize,
    pub(super) version: u32,
}

/// A file that a boot loader offers.
pub(super) struct Offered {
    file: *mut LoadFile2Protocol,
    path: *const uefi_raw::protocol::device_path::DevicePathProtocol,
    bytes: usize,
    status: Status,
}

impl Offered {
    pub(super) fn bytes(&self) -> Result<usize, Failure> {
        match self.status {
            Status::BUFFER_TOO_SMALL => Ok(self.bytes),
            status => check(status, NOT_LOADED).map(|()| 0),
        }
    }

    pub(super) fn load(&self, into: &mut [u8]) -> Result<(), Failure> {
        let mut bytes = into.len();
        // SAFETY: the interface is that of a handle of the firmware, the path is what is left of the path
        // that it was found by, and `into` has as many bytes.
        let status = unsafe {
            ((*self.file).load_file)(
                self.file,
                self.path,
                Boolean::FALSE,
                &mut bytes,
                into.as_mut_ptr().cast(),
            )
        };
        check(status, NOT_LOADED)?;
        let whole = bytes == into.len();
        whole
            .then_some(())
            .or_failure(Status::LOAD_ERROR, NOT_LOADED)
    }
}

const NOT_LOADED: &str = "the initramfs that the boot loader offers (LoadFile2) cannot be loaded: try another, or initrd=PATH";
