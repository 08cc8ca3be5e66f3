//! Declarations of QEMU's plugin interface: the functions that this plugin calls, looked up by name
//! in the program that loaded it. So one binary supports versions 4 (QEMU 10.0) to 7 (11.1) of the
//! interface, although no QEMU accepts all of them. Versions from 1 (QEMU 7.2) on suffice where no
//! registers are needed.

#![allow(unsafe_code, reason = "functions of QEMU, looked up by name")]

use super::callback::{
    Accesses, Callbacks, InsnCallback, MemoryCallback, Site, Translation, accessed, executed, exit,
    exit_before_7, idle, idle_before_7, init, init_before_7, pointer_to, translated,
    translated_before_7, trapped, trapped_before_7,
};
use super::handle::{Access, CpuThread, Insn, TranslatedBlock};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicI32, Ordering};

/// The first version with values of stores and with registers.
const LEAST: i32 = 4;
/// The version from which an instruction's bytes are copied to a buffer of the plugin's.
const COPIES: i32 = 3;
/// The version from which callbacks get a pointer of the plugin's instead of its number.
const POINTERS: i32 = 7;

/// The name of the variable with which `granule watch` passes the version that QEMU has.
pub(crate) const API_VARIABLE: &str = "GRANULE_PLUGIN_API";

pub(crate) type Pointer = *mut c_void;

/// The use of registers in a callback on an instruction.
const NO_REGISTERS: c_int = 0;
const READS_REGISTERS: c_int = 1;
/// The accesses of a memory callback.
pub(crate) const STORES: c_int = 2;
pub(crate) const LOADS_AND_STORES: c_int = 3;
/// The discontinuities that are interrupts and exceptions.
const TRAPS: c_int = 0b11;

/// The value of an access: its type, then 16 bytes.
#[repr(C)]
pub(crate) struct Value {
    pub(crate) kind: c_int,
    pub(crate) words: [u64; 2],
}

/// QEMU's description of itself when it installs a plugin.
#[repr(C)]
pub(crate) struct Info {
    target: *const c_char,
    least: c_int,
    version: c_int,
    is_system: bool,
    cpus: c_int,
    most_cpus: c_int,
}

impl Info {
    /// Returns the description, if it is of the QEMU for arm64 systems.
    ///
    /// # Safety
    ///
    /// `info` is the argument of `qemu_plugin_install`.
    unsafe fn of<'a>(info: *const Self) -> Result<&'a Self, String> {
        // SAFETY: the caller vouches for the pointer, and the structure begins so in all versions.
        let info = unsafe { &*info };
        // SAFETY: QEMU's name of its target ends in a NUL.
        let target = unsafe { CStr::from_ptr(info.target) };
        if !info.is_system || target != c"aarch64" {
            return Err("only qemu-system-aarch64 is supported".into());
        }
        Ok(info)
    }
}

/// One of a CPU's registers that can be read. Later versions have more at the end.
#[repr(C)]
struct RegisterName {
    handle: Pointer,
    name: *const c_char,
    feature: *const c_char,
}

/// The public part of GLib's arrays: the elements and their number.
#[repr(C)]
struct Array {
    data: *mut u8,
    len: c_uint,
}

macro_rules! functions {
    (
        $(#[$doc:meta])*
        $api:ident($given:ident: $type:ty):
        $($name:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*
    ) => {
        $(#[$doc])*
        pub(crate) struct $api {
            $given: $type,
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $api {
            /// Looks the functions up. The error names the first that is not there.
            fn look_up($given: $type) -> Result<Self, &'static str> {
                Ok(Self {
                    $given,
                    $($name: {
                        let found = symbol($symbol);
                        if found.is_null() {
                            return Err(stringify!($name));
                        }
                        // SAFETY: `found` is the function of this name, whose type is this one in
                        // all versions of the interface that the structure is for.
                        unsafe { std::mem::transmute::<
                            Pointer,
                            unsafe extern "C" fn($($argument),*) $(-> $result)?,
                        >(found) }
                    },)*
                })
            }
        }
    };
}

functions! {
    /// The functions of all versions from 1 on: instructions, and callbacks on them.
    Basics(version: i32):
    tb_n_insns = c"qemu_plugin_tb_n_insns": fn(Pointer) -> usize;
    tb_get_insn = c"qemu_plugin_tb_get_insn": fn(Pointer, usize) -> Pointer;
    // Before `COPIES` it takes the first argument alone, and returns the address of the bytes.
    insn_data = c"qemu_plugin_insn_data": fn(Pointer, Pointer, usize) -> usize;
    insn_vaddr = c"qemu_plugin_insn_vaddr": fn(Pointer) -> u64;
    on_insn = c"qemu_plugin_register_vcpu_insn_exec_cb": fn(Pointer, InsnCallback, c_int, Pointer);
    on_translation = c"qemu_plugin_register_vcpu_tb_trans_cb": fn(u64, Pointer, Pointer);
}

functions! {
    /// All functions, from version `LEAST` on.
    Api(basics: Basics):
    on_block = c"qemu_plugin_register_vcpu_tb_exec_cb": fn(Pointer, InsnCallback, c_int, Pointer);
    on_memory = c"qemu_plugin_register_vcpu_mem_cb": fn(Pointer, MemoryCallback, c_int, c_int, Pointer);
    get_hwaddr = c"qemu_plugin_get_hwaddr": fn(u32, u64) -> Pointer;
    hwaddr_phys_addr = c"qemu_plugin_hwaddr_phys_addr": fn(Pointer) -> u64;
    mem_size_shift = c"qemu_plugin_mem_size_shift": fn(u32) -> c_uint;
    mem_get_value = c"qemu_plugin_mem_get_value": fn(u32) -> Value;
    get_registers = c"qemu_plugin_get_registers": fn() -> *mut Array;
    // Returns a number of bytes or a boolean, by version; the length of the array replaces both.
    read_register = c"qemu_plugin_read_register": fn(Pointer, *mut Array) -> c_int;
    on_init = c"qemu_plugin_register_vcpu_init_cb": fn(u64, Pointer, Pointer);
    on_idle = c"qemu_plugin_register_vcpu_idle_cb": fn(u64, Pointer, Pointer);
    on_exit = c"qemu_plugin_register_atexit_cb": fn(u64, Pointer, Pointer);
    print = c"qemu_plugin_outs": fn(*const c_char);
    array_new = c"g_byte_array_new": fn() -> *mut Array;
    array_set_size = c"g_byte_array_set_size": fn(*mut Array, c_uint) -> *mut Array;
    array_element_size = c"g_array_get_element_size": fn(*mut Array) -> c_uint;
    array_free = c"g_array_free": fn(*mut Array, c_int) -> *mut c_char;
}

unsafe extern "C" {
    fn dlsym(handle: Pointer, name: *const c_char) -> Pointer;
}

/// Looks up a function of the program or of a library that it loaded; null if there is none.
fn symbol(name: &CStr) -> Pointer {
    // SAFETY: the name ends in a NUL, and a null handle searches the whole program.
    unsafe { dlsym(std::ptr::null_mut(), name.as_ptr()) }
}

/// The version of the interface that this plugin is written for. QEMU reads the variable after
/// loading the library, and refuses an unknown version; `choose_version` runs before.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
static qemu_plugin_version: AtomicI32 = AtomicI32::new(LEAST);

#[used]
#[unsafe(link_section = ".init_array")]
static CHOOSE: extern "C" fn() = choose_version;

/// Chooses the version that `granule watch` passes, or else one by the functions that QEMU has.
extern "C" fn choose_version() {
    let passed = std::env::var(API_VARIABLE).ok();
    let passed = passed.and_then(|passed| passed.parse().ok());
    let version = passed.unwrap_or_else(|| {
        let has = |name| !symbol(name).is_null();
        // The version that introduced each function.
        if has(c"qemu_plugin_register_vcpu_syscall_filter_cb") {
            7
        } else if has(c"qemu_plugin_register_vcpu_discon_cb") {
            6
        } else if has(c"qemu_plugin_translate_vaddr") {
            5
        } else if has(c"qemu_plugin_mem_get_value") {
            LEAST
        } else if has(c"qemu_plugin_scoreboard_new") {
            2
        } else {
            1
        }
    });
    qemu_plugin_version.store(version, Ordering::Relaxed);
}

impl Api {
    /// Looks up the functions of the QEMU that installs the plugin. Returns them with its number of
    /// CPUs.
    ///
    /// # Safety
    ///
    /// `info` is the argument of `qemu_plugin_install`.
    pub(crate) unsafe fn new(info: *const Info) -> Result<(Self, u16), String> {
        // SAFETY: the caller vouches for the pointer.
        let (info, basics) = unsafe { (Info::of(info)?, Basics::new(info)?) };
        let api = Self::look_up(basics)
            .map_err(|name| format!("this QEMU has no {name}; QEMU 10.0 to 11.1 are supported"))?;
        let cpus = u16::try_from(info.most_cpus.max(info.cpus))
            .ok()
            .filter(|cpus| (1..=64).contains(cpus))
            .ok_or_else(|| {
                format!(
                    "up to 64 CPUs are supported; this machine has {}",
                    info.most_cpus
                )
            })?;
        Ok((api, cpus))
    }

    /// Returns the version of the interface.
    pub(crate) const fn version(&self) -> i32 {
        self.basics.version
    }

    /// Registers the callbacks of `C`. Returns whether QEMU reports exceptions.
    pub(crate) fn register<C: Callbacks>(&self, id: u64) -> bool {
        let null = std::ptr::null_mut();
        self.basics.on_translation::<C>(id);
        let pointers = self.version() >= POINTERS;
        let (on_init, on_idle, on_exit, on_trap) = if pointers {
            (
                init::<C> as *const () as Pointer,
                idle::<C> as *const () as Pointer,
                exit::<C> as *const () as Pointer,
                trapped::<C> as *const () as Pointer,
            )
        } else {
            (
                init_before_7::<C> as *const () as Pointer,
                idle_before_7::<C> as *const () as Pointer,
                exit_before_7::<C> as *const () as Pointer,
                trapped_before_7::<C> as *const () as Pointer,
            )
        };
        // SAFETY: each callback has the type that this version calls. A version whose functions
        // take no pointer ignores the last argument, which is passed in a register.
        unsafe {
            (self.on_init)(id, on_init, null);
            (self.on_idle)(id, on_idle, null);
            (self.on_exit)(id, on_exit, null);
        }
        let on_discontinuity = symbol(c"qemu_plugin_register_vcpu_discon_cb");
        if on_discontinuity.is_null() {
            return false;
        }
        type Register = unsafe extern "C" fn(u64, c_int, Pointer, Pointer);
        // SAFETY: the function has this type in all versions that have it; the last argument is as
        // above.
        unsafe {
            std::mem::transmute::<Pointer, Register>(on_discontinuity)(id, TRAPS, on_trap, null);
        }
        true
    }

    /// See [`Basics::instructions`].
    pub(crate) fn instructions<'b, 'c>(
        &'b self,
        block: &'b TranslatedBlock<'c>,
    ) -> impl Iterator<Item = (Insn<'c>, u64, u32)> + 'b {
        self.basics.instructions(block)
    }

    /// See [`Basics::call_before`].
    pub(crate) fn call_before<T: Site>(&self, insn: &Insn<'_>, reads: bool, site: &'static T) {
        self.basics.call_before(insn, reads, site);
    }

    /// Registers a callback before a block that is being translated.
    pub(crate) fn call_before_block<T: Site>(&self, block: &TranslatedBlock<'_>, site: &'static T) {
        let (handle, data) = (block.handle(), pointer_to(site));
        // SAFETY: a `TranslatedBlock` has the handle of a callback that is running, and the data is of the
        // type that `executed` gets.
        unsafe { (self.on_block)(handle, executed::<T>, NO_REGISTERS, data) };
    }

    /// Registers a callback after each access of this kind (`STORES`, `LOADS_AND_STORES`) of an
    /// instruction.
    pub(crate) fn call_at_memory<A: Accesses>(&self, insn: &Insn<'_>, kind: c_int, data: u64) {
        let (handle, data) = (insn.handle(), data as usize as Pointer);
        // SAFETY: an `Insn` has the handle of a block that is being translated; the data is a number.
        unsafe { (self.on_memory)(handle, accessed::<A>, NO_REGISTERS, kind, data) };
    }

    pub(crate) fn physical(&self, access: &Access<'_>) -> Option<u64> {
        // SAFETY: an `Access` has the arguments of a callback that is running. The handle is QEMU's own,
        // which stays valid until the callback returns.
        unsafe {
            let handle = (self.get_hwaddr)(access.info(), access.address());
            (!handle.is_null()).then(|| (self.hwaddr_phys_addr)(handle))
        }
    }

    /// Returns the size of an access, and its value.
    pub(crate) fn value(&self, access: &Access<'_>) -> (u8, [u64; 2]) {
        let info = access.info();
        // SAFETY: an `Access` has the argument of a callback that is running.
        let (shift, value) = unsafe { ((self.mem_size_shift)(info), (self.mem_get_value)(info)) };
        (1 << shift.min(7), value.words)
    }

    /// Prints a line to QEMU's output of plugins.
    pub(crate) fn print(&self, line: &CStr) {
        // SAFETY: the line ends in a NUL.
        unsafe { (self.print)(line.as_ptr()) };
    }

    pub(crate) fn registers(&self, _thread: &CpuThread<'_>) -> CpuRegisters {
        let mut found = CpuRegisters {
            general: [std::ptr::null_mut(); 31],
            status: std::ptr::null_mut(),
            // SAFETY: it has no argument.
            buffer: unsafe { (self.array_new)() },
        };
        // SAFETY: a `CpuThread` exists in the thread of a CPU alone, in a callback.
        let names = unsafe { (self.get_registers)() };
        if names.is_null() {
            return found;
        }
        // SAFETY: QEMU made the array.
        let (data, count, stride) = unsafe {
            let stride = (self.array_element_size)(names) as usize;
            ((*names).data, (*names).len as usize, stride)
        };
        let count = if stride < size_of::<RegisterName>() {
            0
        } else {
            count
        };
        for index in 0..count {
            // SAFETY: the array has `count` elements of `stride` bytes, each of which begins with a
            // `RegisterName`, and a register's name ends in a NUL.
            let (register, name) = unsafe {
                let register = &*data.add(index * stride).cast::<RegisterName>();
                (register, CStr::from_ptr(register.name).to_bytes())
            };
            match name {
                b"cpsr" => found.status = register.handle,
                [b'x', digits @ ..] => {
                    let number = std::str::from_utf8(digits).ok();
                    let number = number.and_then(|number| number.parse::<usize>().ok());
                    if let Some(slot) = number.and_then(|number| found.general.get_mut(number)) {
                        *slot = register.handle;
                    }
                }
                _ => (),
            }
        }
        // SAFETY: the array was made for this call, and nothing keeps its elements.
        unsafe { (self.array_free)(names, 1) };
        found
    }

    fn read(&self, registers: &CpuRegisters, handle: Pointer) -> Option<u64> {
        if handle.is_null() {
            return None;
        }
        let buffer = registers.buffer;
        let mut value = [0; 8];
        // SAFETY: the private fields of `CpuRegisters` are what `registers` made in this thread, which
        // the value cannot leave: an array of bytes that nothing else uses, and a register's handle. An
        // array without bytes may have no address.
        unsafe {
            (self.array_set_size)(buffer, 0);
            (self.read_register)(handle, buffer);
            let (data, len) = ((*buffer).data, (*buffer).len as usize);
            if len == 0 || len > value.len() {
                return None;
            }
            value.as_mut_ptr().copy_from_nonoverlapping(data, len);
        }
        Some(u64::from_le_bytes(value))
    }

    /// Reads a general register by its number; 31 is zero.
    pub(crate) fn general(&self, registers: &CpuRegisters, number: u8) -> Option<u64> {
        match registers.general.get(usize::from(number)) {
            Some(handle) => self.read(registers, *handle),
            None => Some(0),
        }
    }

    /// Reads the exception level.
    pub(crate) fn level(&self, registers: &CpuRegisters) -> Option<u8> {
        let status = self.read(registers, registers.status)?;
        Some((status >> 2 & 3) as u8)
    }
}

impl Basics {
    /// Looks up the functions of the QEMU that installs the plugin.
    ///
    /// # Safety
    ///
    /// See [`Api::new`].
    pub(crate) unsafe fn new(info: *const Info) -> Result<Self, String> {
        // SAFETY: the caller vouches for the pointer.
        let info = unsafe { Info::of(info) }?;
        Self::look_up(info.version)
            .map_err(|name| format!("this QEMU has no {name}; QEMU 7.2 to 11.1 are supported"))
    }

    /// Registers the callback for each block that QEMU translates.
    pub(crate) fn on_translation<C: Translation>(&self, id: u64) {
        let null = std::ptr::null_mut();
        let call = if self.version >= POINTERS {
            translated::<C> as *const () as Pointer
        } else {
            translated_before_7::<C> as *const () as Pointer
        };
        // SAFETY: the callback has the type that this version calls, and a version whose functions
        // take no pointer ignores the last argument, which is passed in a register.
        unsafe { (self.on_translation)(id, call, null) };
    }

    /// Lists the instructions of a block that is being translated: handle, address and word.
    pub(crate) fn instructions<'b, 'c>(
        &'b self,
        block: &'b TranslatedBlock<'c>,
    ) -> impl Iterator<Item = (Insn<'c>, u64, u32)> + 'b {
        // SAFETY: a `TranslatedBlock` has the handle of a callback that is running.
        let count = unsafe { (self.tb_n_insns)(block.handle()) };
        (0..count).map(move |index| {
            // SAFETY: as above, and the index is one of the block's.
            let insn = unsafe { (self.tb_get_insn)(block.handle(), index) };
            let mut word = [0_u8; 4];
            // SAFETY: `insn` is one of the block's. `word` has room for four bytes. A version that
            // does not copy ignores the arguments for it, which are passed in registers. It returns
            // the address of an instruction's bytes, four on arm64.
            let address = unsafe {
                let result = (self.insn_data)(insn, word.as_mut_ptr().cast(), word.len());
                if self.version < COPIES {
                    word = (result as *const [u8; 4]).read();
                }
                (self.insn_vaddr)(insn)
            };
            // SAFETY: the handle is of this block's instruction.
            let insn = unsafe { Insn::new(block, insn) };
            (insn, address, u32::from_le_bytes(word))
        })
    }

    /// Registers a callback before an instruction.
    pub(crate) fn call_before<T: Site>(&self, insn: &Insn<'_>, reads: bool, site: &'static T) {
        let flags = if reads { READS_REGISTERS } else { NO_REGISTERS };
        let (handle, data) = (insn.handle(), pointer_to(site));
        // SAFETY: an `Insn` has the handle of a block that is being translated, and the data is of the
        // type that `executed` gets.
        unsafe { (self.on_insn)(handle, executed::<T>, flags, data) };
    }
}

/// The handles of the registers of one CPU, and a buffer for values; both stay in its thread.
pub(crate) struct CpuRegisters {
    general: [Pointer; 31],
    status: Pointer,
    buffer: *mut Array,
}
