//! The signals of one process: actions, masks, pending signals, and the next action.
//!
//! This file is a state machine without a clock, memory or other processes.
//! [`processes`](super::processes) sends signals, [`frame`] has the stack frame of a handler, and
//! [`syscall::deliver`](super::syscall::deliver) takes the next action.
//!
//! A blocked signal wakes only a process that sleeps for it (`rt_sigtimedwait`).

pub mod frame;
pub mod set;

use crate::abi::Errno;
use crate::abi::signal::{
    MINSIGSTKSZ, SA_NODEFER, SA_RESETHAND, SI_KERNEL, SIG_BLOCK, SIG_DFL, SIG_IGN, SIG_SETMASK,
    SIG_UNBLOCK, SIGABRT, SIGBUS, SIGCHLD, SIGCONT, SIGFPE, SIGILL, SIGKILL, SIGNALS, SIGQUIT,
    SIGSEGV, SIGSTOP, SIGSYS, SIGTRAP, SIGTSTP, SIGTTIN, SIGTTOU, SIGURG, SIGWINCH, SIGXCPU,
    SIGXFSZ, SS_DISABLE, SS_ONSTACK, SigAction, SigInfo, SigStack,
};
use set::SignalSet;

/// The cause of a signal, as reported in `siginfo`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// `siginfo`'s code.
    pub code: i32,
    /// SIGCHLD: the child's exit status or signal.
    pub status: i32,
    /// The number of the sender or child; or the address of the fault.
    pub value: u64,
}

impl Cause {
    /// Sent by another process, by `kill` (SI_USER) or `tkill`.
    pub const fn process(code: i32, pid: u32) -> Self {
        Self {
            code,
            status: 0,
            value: pid as u64,
        }
    }

    /// Sent by the kernel without an address: SIGPIPE.
    pub const KERNEL: Self = Self::process(SI_KERNEL, 0);

    const NONE: Self = Self::process(0, 0);

    /// The `siginfo` for a handler.
    pub const fn info(self, signal: u8) -> SigInfo {
        SigInfo {
            signo: signal as i32,
            errno: 0,
            code: self.code,
            pad: 0,
            // An address fills both words; a process number leaves 0 in the second, user root.
            fields: [self.value as u32, (self.value >> 32) as u32],
            status: self.status,
            pad2: 0,
            rest: [0; 12],
        }
    }
}

/// The action for a signal without a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Default {
    /// The signal is ignored.
    Ignore,
    /// The process ends.
    Terminate,
    /// The process ends, and would dump core; no core file is written.
    Dump,
}

/// The default action of each signal.
pub const fn default_of(signal: u8) -> Default {
    match signal {
        SIGCHLD | SIGURG | SIGWINCH => Default::Ignore,
        // Without job control no signal stops a process, so none continues it.
        SIGCONT | SIGSTOP | SIGTSTP | SIGTTIN | SIGTTOU => Default::Ignore,
        SIGQUIT | SIGILL | SIGTRAP | SIGABRT | SIGBUS | SIGFPE | SIGSEGV | SIGXCPU | SIGXFSZ
        | SIGSYS => Default::Dump,
        _ => Default::Terminate,
    }
}

/// Signals caused by an instruction; they must be handled before the instruction runs again.
const SYNCHRONOUS: SignalSet = SignalSet::EMPTY
    .with(SIGSEGV)
    .with(SIGBUS)
    .with(SIGILL)
    .with(SIGTRAP)
    .with(SIGFPE)
    .with(SIGSYS);

/// The next action for a signal before the process continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Run the handler.
    Handle {
        /// The signal.
        signal: u8,
        /// The cause.
        cause: Cause,
        /// The action that the program set.
        action: SigAction,
        /// The mask to restore when the handler returns.
        mask: SignalSet,
    },
    /// End the process.
    Terminate {
        /// The signal.
        signal: u8,
        /// Whether the default action is to dump core.
        dump: bool,
    },
}

/// The signals of one process.
#[derive(Clone, Debug)]
pub struct Signals {
    actions: [SigAction; SIGNALS as usize],
    causes: [Cause; SIGNALS as usize],
    pending: SignalSet,
    blocked: SignalSet,
    /// The mask to restore after a system call that set a temporary mask.
    before_call: Option<SignalSet>,
    /// The signals that `rt_sigtimedwait` waits for, blocked or not.
    awaited: SignalSet,
    /// Signals to a whole group since the process began to make its latest child.
    for_child: SignalSet,
    stack: SigStack,
    /// Whether this is the first process, which no default action ends.
    is_init: bool,
}

impl Signals {
    /// Default actions, nothing blocked.
    pub const fn new(is_init: bool) -> Self {
        Self {
            actions: [SigAction::DEFAULT; SIGNALS as usize],
            causes: [Cause::NONE; SIGNALS as usize],
            pending: SignalSet::EMPTY,
            blocked: SignalSet::EMPTY,
            before_call: None,
            awaited: SignalSet::EMPTY,
            for_child: SignalSet::EMPTY,
            stack: NO_STACK,
            is_init,
        }
    }

    /// Marks the first process, which no default action ends.
    pub const fn set_init(&mut self) {
        self.is_init = true;
    }

    /// Copies what a forked child inherits: everything of the parent except pending signals.
    pub fn fork_from(&mut self, parent: &Self) {
        self.actions = parent.actions;
        self.blocked = parent.before_call.unwrap_or(parent.blocked);
        self.stack = parent.stack;
    }

    /// `execve`: resets handlers to the default; ignored signals stay ignored.
    pub fn executed(&mut self) {
        for action in &mut self.actions {
            *action = SigAction {
                handler: match action.handler {
                    SIG_IGN => SIG_IGN,
                    _ => SIG_DFL,
                },
                ..SigAction::default()
            };
        }
        self.stack = NO_STACK;
        self.before_call = None;
    }

    /// The action for a signal.
    pub fn action(&self, signal: u8) -> Result<SigAction, Errno> {
        let slot = self.actions.get(usize::from(signal).wrapping_sub(1));
        slot.copied().ok_or(Errno::EINVAL)
    }

    /// Whether the action for a signal has this handler.
    fn has_handler(&self, signal: u8, handler: u64) -> bool {
        self.action(signal).is_ok_and(|it| it.handler == handler)
    }

    fn action_mut(&mut self, signal: u8) -> Option<&mut SigAction> {
        self.actions.get_mut(usize::from(signal).wrapping_sub(1))
    }

    /// Sets the action for a signal.
    pub fn set_action(&mut self, signal: u8, action: SigAction) -> Result<(), Errno> {
        if SignalSet::UNBLOCKABLE.has(signal) {
            return Err(Errno::EINVAL);
        }
        *self.action_mut(signal).ok_or(Errno::EINVAL)? = SigAction {
            mask: SignalSet(action.mask).without(SignalSet::UNBLOCKABLE).0,
            ..action
        };
        // A pending signal that is now ignored is discarded.
        if self.ignores(signal) {
            self.pending = self.pending.without(SignalSet::EMPTY.with(signal));
        }
        Ok(())
    }

    /// No default action ends the first process.
    fn ignores(&self, signal: u8) -> bool {
        match self.action(signal).map(|action| action.handler) {
            Ok(SIG_IGN) => true,
            Ok(SIG_DFL) => self.is_init || default_of(signal) == Default::Ignore,
            _ => false,
        }
    }

    /// The blocked signals.
    pub const fn blocked(&self) -> SignalSet {
        self.blocked
    }

    /// The pending signals.
    pub const fn pending(&self) -> SignalSet {
        self.pending
    }

    /// `rt_sigprocmask`.
    pub fn change_mask(&mut self, how: u32, set: SignalSet) -> Result<(), Errno> {
        let blocked = match how {
            SIG_BLOCK => self.blocked.and(set),
            SIG_UNBLOCK => self.blocked.without(set),
            SIG_SETMASK => set,
            _ => return Err(Errno::EINVAL),
        };
        self.set_mask(blocked);
        Ok(())
    }

    /// Sets the blocked signals.
    pub fn set_mask(&mut self, blocked: SignalSet) {
        self.blocked = blocked.without(SignalSet::UNBLOCKABLE);
    }

    /// Sets the blocked signals for the duration of one system call. The return of a handler restores
    /// the old mask, and so does [`end_call`](Self::end_call).
    pub fn set_mask_for_call(&mut self, blocked: SignalSet) {
        let before = self.blocked;
        self.before_call.get_or_insert(before);
        self.set_mask(blocked);
    }

    /// Ends a system call with a temporary mask, without a handler.
    pub fn end_call(&mut self) {
        if let Some(mask) = self.before_call.take() {
            self.blocked = mask;
        }
    }

    /// Lets any signal of `set` wake the process, even a blocked one. The empty set ends this.
    pub const fn set_awaited(&mut self, set: SignalSet) {
        self.awaited = set;
    }

    /// Records a signal to a whole group for the child that is being made.
    pub const fn send_to_child(&mut self, signal: u8) {
        self.for_child = self.for_child.with(signal);
    }

    /// Takes the signals recorded for the child since the last call.
    pub const fn take_for_child(&mut self) -> SignalSet {
        core::mem::replace(&mut self.for_child, SignalSet::EMPTY)
    }

    /// Makes a signal pending. Returns whether a waiting process must wake.
    pub fn send(&mut self, signal: u8, cause: Cause) -> bool {
        let this = SignalSet::EMPTY.with(signal);
        // A blocked signal is kept even if ignored: the program may wait for it, or set a handler,
        // before it is unblocked.
        if self.ignores(signal) && !self.blocked.has(signal) {
            return false;
        }
        // A signal that is already pending keeps its cause: standard signals do not queue.
        if !self.pending.has(signal)
            && let Some(slot) = self.causes.get_mut(usize::from(signal).wrapping_sub(1))
        {
            *slot = cause;
        }
        self.pending = self.pending.and(this);
        !self.blocked.has(signal) || self.awaited.has(signal)
    }

    /// Sends a signal caused by an instruction. A blocked or ignored one ends the process.
    pub fn force(&mut self, signal: u8, cause: Cause) {
        let this = SignalSet::EMPTY.with(signal);
        if self.has_handler(signal, SIG_IGN) || self.blocked.has(signal) {
            self.reset_action(signal);
        }
        self.blocked = self.blocked.without(this);
        self.pending = self.pending.without(this);
        // Without a handler even the first process ends: it cannot continue.
        self.is_init &= !self.has_handler(signal, SIG_DFL);
        self.send(signal, cause);
    }

    /// Sets the default action for a signal.
    pub fn reset_action(&mut self, signal: u8) {
        if let Some(action) = self.action_mut(signal) {
            *action = SigAction::default();
        }
    }

    /// Whether a signal must be handled before the process continues.
    pub fn has_work(&self) -> bool {
        !self.pending.without(self.blocked).is_empty()
    }

    /// Whether SIGKILL is pending.
    pub const fn is_killed(&self) -> bool {
        self.pending.has(SIGKILL)
    }

    /// Takes a pending signal of `set`, blocked or not, for `rt_sigtimedwait`.
    pub fn take(&mut self, set: SignalSet) -> Option<(u8, Cause)> {
        let there = SignalSet(self.pending.0 & set.0);
        let signal = there.first()?;
        self.pending = self.pending.without(SignalSet::EMPTY.with(signal));
        Some((signal, self.cause(signal)))
    }

    /// The stored cause of a signal, if it came.
    pub fn cause(&self, signal: u8) -> Cause {
        let slot = self.causes.get(usize::from(signal).wrapping_sub(1));
        slot.copied().unwrap_or_default()
    }

    /// Takes the next unblocked signal and returns its action, with a handler's mask in place.
    pub fn take_next(&mut self) -> Option<Next> {
        loop {
            let ready = self.pending.without(self.blocked);
            let synchronous = SignalSet(ready.0 & SYNCHRONOUS.0);
            let signal = if ready.has(SIGKILL) {
                SIGKILL
            } else {
                synchronous.first().or(ready.first())?
            };
            self.pending = self.pending.without(SignalSet::EMPTY.with(signal));
            let action = self.action(signal).unwrap_or_default();
            let cause = self.cause(signal);
            match (action.handler, default_of(signal)) {
                (SIG_IGN, _) | (SIG_DFL, Default::Ignore) => {}
                // Also a signal that was blocked before spares the first process.
                (SIG_DFL, _) if self.is_init => {}
                (SIG_DFL, default) => {
                    let dump = default == Default::Dump;
                    return Some(Next::Terminate { signal, dump });
                }
                _ => return Some(self.handle(signal, cause, action)),
            }
        }
    }

    fn handle(&mut self, signal: u8, cause: Cause, action: SigAction) -> Next {
        let mask = self.before_call.take().unwrap_or(self.blocked);
        let mut blocked = self.blocked.and(SignalSet(action.mask));
        if action.flags & SA_NODEFER == 0 {
            blocked = blocked.with(signal);
        }
        self.set_mask(blocked);
        if action.flags & SA_RESETHAND != 0 {
            self.reset_action(signal);
        }
        Next::Handle {
            signal,
            cause,
            action,
            mask,
        }
    }

    /// The alternate stack, as `sigaltstack` reports it at stack pointer `sp`.
    pub fn stack(&self, sp: u64) -> SigStack {
        let in_use = if self.is_on_stack(sp) { SS_ONSTACK } else { 0 };
        SigStack {
            flags: self.stack.flags | in_use,
            ..self.stack
        }
    }

    fn is_on_stack(&self, sp: u64) -> bool {
        self.stack.flags & SS_DISABLE == 0
            && sp > self.stack.base
            && sp - self.stack.base <= self.stack.size
    }

    /// Sets the alternate stack; `EPERM` if `sp` is on the current one.
    pub fn set_stack(&mut self, stack: SigStack, sp: u64) -> Result<(), Errno> {
        if self.is_on_stack(sp) {
            return Err(Errno::EPERM);
        }
        self.stack = match stack.flags & !SS_ONSTACK {
            SS_DISABLE => NO_STACK,
            0 if stack.size < MINSIGSTKSZ => return Err(Errno::ENOMEM),
            0 => SigStack {
                flags: 0,
                pad: 0,
                ..stack
            },
            _ => return Err(Errno::EINVAL),
        };
        Ok(())
    }

    /// The upper end of the frame for a handler with these flags, for a program with stack pointer `sp`.
    pub fn handler_stack(&self, flags: u64, sp: u64) -> u64 {
        let wanted = flags & crate::abi::signal::SA_ONSTACK != 0;
        if wanted && self.stack.flags & SS_DISABLE == 0 && !self.is_on_stack(sp) {
            self.stack.base.saturating_add(self.stack.size)
        } else {
            sp
        }
    }
}

const NO_STACK: SigStack = SigStack {
    base: 0,
    flags: SS_DISABLE,
    pad: 0,
    size: 0,
};

#[cfg(test)]
mod tests;
