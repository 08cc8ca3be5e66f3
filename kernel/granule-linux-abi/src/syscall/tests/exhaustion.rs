//! Lets each allocation of the calls fail in turn: the call must fail and leak nothing.

use super::*;
use crate::files::Files;
use crate::files::file_tree::{Node, Tree, nodes_needed};
use crate::owned::host::{self, Array};
use crate::processes::tests::{PLACES, try_child};

/// Makes pipes, files and children as far as memory allows. Returns the number of failed calls.
fn work(fake: &mut Fake) -> usize {
    let mut failed = 0;
    let mut pipes = Vec::new();
    for _ in 0..3 {
        match fake.call(n::PIPE2, &[BASE, u64::from(O_NONBLOCK)]) {
            Ok(_) => pipes.push(fake.get::<[u32; 2]>(BASE)),
            Err(fail) => {
                assert_eq!(fail, Fail::Error(Errno::ENOMEM));
                failed += 1;
            }
        }
    }
    let file = fake.open("/etc/text", 0);
    for [out, into] in &pipes {
        let wrote = fake.ok(n::WRITE, &[u64::from(*into), BASE, 3000]);
        assert_eq!(fake.ok(n::READ, &[u64::from(*out), BASE, 0x7000]), wrote);
    }
    let mut children = Vec::new();
    for _ in 0..3 {
        match try_child(&mut fake.processes, 0) {
            Ok(place) => children.push(place),
            Err(error) => {
                assert_eq!(error, Errno::ENOMEM);
                failed += 1;
            }
        }
    }
    for [out, into] in pipes {
        fake.ok(n::CLOSE, &[out.into()]);
        fake.ok(n::CLOSE, &[into.into()]);
    }
    fake.ok(n::CLOSE, &[file]);
    for place in children {
        ends(&mut fake.processes, place, Status::Exited(0));
        assert!(matches!(fake.call(n::WAIT4, &[u64::MAX]), Ok(1..)));
    }
    failed
}

#[test]
fn every_allocation_of_a_call_may_fail() {
    let mut made = None;
    for allocations in 0.. {
        let mut fake = Fake::new();
        let (held, counts) = (host::held(), fake.processes.files.counts());
        host::run_out_after(allocations);
        let failed = work(&mut fake);
        host::run_out_after(usize::MAX);
        assert_eq!(host::held(), held, "after {allocations} allocations");
        assert_eq!(fake.processes.files.counts(), counts);
        // With memory again, every call succeeds and nothing has leaked.
        assert_eq!(work(&mut fake), 0);
        assert_eq!(host::held(), held);
        if failed == 0 {
            made = Some(allocations);
            break;
        }
    }
    assert!(made >= Some(6), "{made:?}");
}

#[test]
fn user_space_may_not_begin_for_want_of_memory() {
    let before = host::held();
    let archive = crate::files::tests::archive();
    let begin = || {
        let nodes = Array::new(nodes_needed(archive).ok()?, |_| Node::EMPTY)?;
        let files = Files::new(Tree::build(archive, nodes).ok()?)?;
        Processes::new(files, Kin::default(), PLACES)
    };
    for allocations in 0.. {
        host::run_out_after(allocations);
        let begun = begin().is_some();
        host::run_out_after(usize::MAX);
        assert_eq!(host::held(), before, "after {allocations} allocations");
        if begun {
            assert!(allocations >= 5, "{allocations}");
            return;
        }
    }
}
