//! Signals of one process: what it does about each, which it lets in, which have come, and what is
//! to be done about the next one before the process goes on.
//!
//! A state machine without a clock, memory or other processes: who sends is
//! [`process`](super::process)' business; the stack frame of a handler is [`frame`]'s; when a
//! process looks is [`syscall::deliver`](super::syscall::deliver)'s.

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

/// Why a signal came; what `siginfo` tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// `siginfo`'s code.
    pub code: i32,
    /// SIGCHLD: how the child ended.
    pub status: i32,
    /// The sender's or child's number; or the address that faulted.
    pub value: u64,
}

impl Cause {
    /// Another process, by `kill` (SI_USER) or `tkill`.
    pub const fn process(code: i32, pid: u32) -> Self {
        Self {
            code,
            status: 0,
            value: pid as u64,
        }
    }

    /// The kernel, for no address: SIGPIPE.
    pub const KERNEL: Self = Self {
        code: SI_KERNEL,
        status: 0,
        value: 0,
    };

    /// As a handler is told.
    pub const fn info(self, signal: u8) -> SigInfo {
        SigInfo {
            signo: signal as i32,
            errno: 0,
            code: self.code,
            pad: 0,
            // An address fills both; a process number leaves the second to its user, root.
            fields: [self.value as u32, (self.value >> 32) as u32],
            status: self.status,
            pad2: 0,
            rest: [0; 12],
        }
    }
}

/// What happens without a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Default {
    /// Nothing happens.
    Ignore,
    /// The process ends.
    Terminate,
    /// As terminate; where cores are dumped, one is.
    Dump,
}

/// What each signal does without a handler.
pub const fn default_of(signal: u8) -> Default {
    match signal {
        SIGCHLD | SIGURG | SIGWINCH => Default::Ignore,
        // There is no job control: no signal stops a process, so none makes it go on.
        SIGCONT | SIGSTOP | SIGTSTP | SIGTTIN | SIGTTOU => Default::Ignore,
        SIGQUIT | SIGILL | SIGTRAP | SIGABRT | SIGBUS | SIGFPE | SIGSEGV | SIGXCPU | SIGXFSZ
        | SIGSYS => Default::Dump,
        _ => Default::Terminate,
    }
}

/// Those that an instruction caused, which must be dealt with before it is tried again.
const SYNCHRONOUS: SignalSet = SignalSet::EMPTY
    .with(SIGSEGV)
    .with(SIGBUS)
    .with(SIGILL)
    .with(SIGTRAP)
    .with(SIGFPE)
    .with(SIGSYS);

/// What to do about a signal before the process goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Its handler runs.
    Handle {
        /// The signal.
        signal: u8,
        /// Why it came.
        cause: Cause,
        /// The action that the program set.
        action: SigAction,
        /// The mask that is to be back in place when it returns.
        mask: SignalSet,
    },
    /// The process ends.
    Terminate {
        /// The signal.
        signal: u8,
        /// Whether the default action is to dump core.
        dump: bool,
    },
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Signals {
    actions: [SigAction; SIGNALS as usize],
    causes: [Cause; SIGNALS as usize],
    pending: SignalSet,
    blocked: SignalSet,
    /// The mask to go back to, where a system call has set another one for its own time.
    before_call: Option<SignalSet>,
    /// Those that `rt_sigtimedwait` sleeps for, blocked or not.
    awaited: SignalSet,
    /// Those that came for all of a group since the process began to make its latest child.
    for_child: SignalSet,
    stack: SigStack,
    /// The first process: what would end it by default does nothing.
    is_init: bool,
}

impl Signals {
    /// Default actions, nothing blocked.
    pub const fn new(is_init: bool) -> Self {
        Self {
            actions: [SigAction {
                handler: SIG_DFL,
                flags: 0,
                restorer: 0,
                mask: 0,
            }; SIGNALS as usize],
            causes: [Cause {
                code: 0,
                status: 0,
                value: 0,
            }; SIGNALS as usize],
            pending: SignalSet::EMPTY,
            blocked: SignalSet::EMPTY,
            before_call: None,
            awaited: SignalSet::EMPTY,
            for_child: SignalSet::EMPTY,
            stack: NO_STACK,
            is_init,
        }
    }

    /// The first process's: what it does not handle does not end it.
    pub const fn set_init(&mut self) {
        self.is_init = true;
    }

    /// Becomes what a forked child has: all of the parent's but what has come.
    pub fn fork_from(&mut self, parent: &Self) {
        self.actions = parent.actions;
        self.blocked = parent.before_call.unwrap_or(parent.blocked);
        self.stack = parent.stack;
    }

    /// `execve`: handlers are gone with the program that had them, what is ignored stays so.
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

    /// What is done about a signal.
    pub fn action(&self, signal: u8) -> Result<SigAction, Errno> {
        let slot = self.actions.get(usize::from(signal).wrapping_sub(1));
        slot.copied().ok_or(Errno::EINVAL)
    }

    /// Changes what is done about a signal.
    pub fn set_action(&mut self, signal: u8, action: SigAction) -> Result<(), Errno> {
        if SignalSet::UNBLOCKABLE.has(signal) {
            return Err(Errno::EINVAL);
        }
        let slot = self.actions.get_mut(usize::from(signal).wrapping_sub(1));
        *slot.ok_or(Errno::EINVAL)? = SigAction {
            mask: SignalSet(action.mask).without(SignalSet::UNBLOCKABLE).0,
            ..action
        };
        // What came and is ignored now is as if it had never come.
        if self.ignores(signal) {
            self.drop_pending(SignalSet::EMPTY.with(signal));
        }
        Ok(())
    }

    fn ignores(&self, signal: u8) -> bool {
        match self.action(signal).map(|action| action.handler) {
            Ok(SIG_IGN) => true,
            Ok(SIG_DFL) => default_of(signal) == Default::Ignore || self.is_spared(signal),
            _ => false,
        }
    }

    /// Whether this is the first process and the signal would end it.
    const fn is_spared(&self, signal: u8) -> bool {
        self.is_init && !matches!(default_of(signal), Default::Ignore)
    }

    /// What is not let in.
    pub const fn blocked(&self) -> SignalSet {
        self.blocked
    }

    /// What has come and is not let in.
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

    /// Sets what is not let in.
    pub fn set_mask(&mut self, blocked: SignalSet) {
        self.blocked = blocked.without(SignalSet::UNBLOCKABLE);
    }

    /// Sets what is not let in for the time of one system call. When it is over, a handler returns
    /// to the mask of before, and so does [`end_call`](Self::end_call).
    pub fn set_mask_for_call(&mut self, blocked: SignalSet) {
        let before = self.blocked;
        self.before_call.get_or_insert(before);
        self.set_mask(blocked);
    }

    /// The system call that had a mask of its own is over, without a handler.
    pub fn end_call(&mut self) {
        if let Some(mask) = self.before_call.take() {
            self.blocked = mask;
        }
    }

    /// From here on one of `set` wakes the process, though it be blocked; none, to end that.
    pub const fn set_awaited(&mut self, set: SignalSet) {
        self.awaited = set;
    }

    /// A signal comes for all of a group: for a child that is being made, too.
    pub const fn send_to_child(&mut self, signal: u8) {
        self.for_child = self.for_child.with(signal);
    }

    /// What came for the child since this was called last.
    pub const fn take_for_child(&mut self) -> SignalSet {
        core::mem::replace(&mut self.for_child, SignalSet::EMPTY)
    }

    /// A signal comes. Whether there is something to do about it now, so that a waiting process
    /// must wake up.
    pub fn send(&mut self, signal: u8, cause: Cause) -> bool {
        let this = SignalSet::EMPTY.with(signal);
        // One that is blocked may be asked for before it is let in, or get a handler.
        if self.ignores(signal) && !self.blocked.has(signal) {
            return false;
        }
        // One that is pending already keeps its cause: standard signals do not queue.
        if !self.pending.has(signal)
            && let Some(slot) = self.causes.get_mut(usize::from(signal).wrapping_sub(1))
        {
            *slot = cause;
        }
        self.pending = self.pending.and(this);
        !self.blocked.has(signal) || self.awaited.has(signal)
    }

    /// A signal that cannot wait and cannot be ignored: an instruction caused it. If it is blocked
    /// or ignored, it ends the process.
    pub fn force(&mut self, signal: u8, cause: Cause) {
        let this = SignalSet::EMPTY.with(signal);
        let ignored = self
            .action(signal)
            .is_ok_and(|action| action.handler == SIG_IGN);
        if (ignored || self.blocked.has(signal))
            && let Some(slot) = self.actions.get_mut(usize::from(signal).wrapping_sub(1))
        {
            *slot = SigAction::default();
        }
        self.blocked = self.blocked.without(this);
        self.pending = self.pending.without(this);
        let has_handler = self
            .action(signal)
            .is_ok_and(|action| action.handler != SIG_DFL);
        // The first process goes, too, if it has no handler: it cannot go on.
        self.is_init &= has_handler;
        self.send(signal, cause);
    }

    /// A handler that cannot begin is none: the default action is in its place.
    pub fn forbid(&mut self, signal: u8) {
        if let Some(slot) = self.actions.get_mut(usize::from(signal).wrapping_sub(1)) {
            *slot = SigAction::default();
        }
    }

    fn drop_pending(&mut self, set: SignalSet) {
        self.pending = self.pending.without(set);
    }

    /// Whether something is to be done before the process goes on.
    pub fn has_work(&self) -> bool {
        !self.pending.without(self.blocked).is_empty()
    }

    /// Whether the process is as good as ended.
    pub const fn is_killed(&self) -> bool {
        self.pending.has(SIGKILL)
    }

    /// Takes one of `set` that has come, blocked or not, for `rt_sigtimedwait`.
    pub fn take(&mut self, set: SignalSet) -> Option<(u8, Cause)> {
        let there = SignalSet(self.pending.0 & set.0);
        let signal = there.first()?;
        self.pending = self.pending.without(SignalSet::EMPTY.with(signal));
        Some((signal, self.cause(signal)))
    }

    /// Why it came, if it did.
    pub fn cause(&self, signal: u8) -> Cause {
        let slot = self.causes.get(usize::from(signal).wrapping_sub(1));
        slot.copied().unwrap_or_default()
    }

    /// What to do about the next signal that is let in; takes it. A handler's mask is in place
    /// afterwards.
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
                (SIG_IGN, _) => {}
                (SIG_DFL, Default::Ignore) => {}
                // No signal without a handler ends the first process, whenever it was let in.
                (SIG_DFL, _) if self.is_init => {}
                (SIG_DFL, Default::Terminate) => {
                    return Some(Next::Terminate {
                        signal,
                        dump: false,
                    });
                }
                (SIG_DFL, Default::Dump) => return Some(Next::Terminate { signal, dump: true }),
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
        if action.flags & SA_RESETHAND != 0
            && let Some(slot) = self.actions.get_mut(usize::from(signal).wrapping_sub(1))
        {
            *slot = SigAction::default();
        }
        Next::Handle {
            signal,
            cause,
            action,
            mask,
        }
    }

    /// The other stack as `sigaltstack` tells it to who runs with this stack pointer.
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

    /// Sets the other stack, for who runs with this stack pointer.
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

    /// Where the frame of a handler with these flags begins, downwards, for who runs with this
    /// stack pointer.
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
