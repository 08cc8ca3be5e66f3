//! The course of runs, with cases that only report that they ran.

use super::*;
use std::sync::Mutex;

/// Some cases, and the folder of a state.
struct Soak {
    folder: tempfile::TempDir,
    cases: Vec<SoakCase>,
}

fn soak() -> Soak {
    let mut cases = cases::all(1, 300).unwrap();
    cases.truncate(40);
    let folder = tempfile::tempdir().unwrap();
    Soak { folder, cases }
}

fn same_tree() -> Result<String> {
    Ok("c".to_owned())
}

impl Soak {
    fn run<'a>(&self, tree: &'a dyn Fn() -> Result<String>) -> Run<'a> {
        let fresh = State {
            commit: "c".into(),
            image: "i".into(),
            seed: 1,
            done: BTreeMap::new(),
        };
        let file = self.folder.path().join("state.json");
        Run {
            state: state::resume(&file, fresh).unwrap(),
            file,
            stop: Stop::never(),
            tree,
        }
    }

    /// Runs the remaining cases of a state; returns those that began.
    fn go_on(
        &self,
        run: &mut Run<'_>,
        work: impl Fn(&SoakCase, &Stop) -> Outcome + Sync,
    ) -> (Vec<String>, Result<()>) {
        let begun = Mutex::new(Vec::new());
        let mut todo: Vec<_> = self.cases.iter().collect();
        todo.retain(|case| !run.state.done.contains_key(&case.name));
        let result = run.all(&todo, &|case, stop| {
            begun.lock().unwrap().push(case.name.clone());
            work(case, stop)
        });
        (begun.into_inner().unwrap(), result)
    }

    /// Runs the remaining cases in a process of its own, as it were; returns those that began, the last line, and whether
    /// it is a success.
    fn again(
        &self,
        work: impl Fn(&SoakCase, &Stop) -> Outcome + Sync,
    ) -> (Vec<String>, String, bool) {
        let mut run = self.run(&same_tree);
        let (begun, result) = self.go_on(&mut run, work);
        result.unwrap();
        let names = self.cases.iter().map(|case| case.name.as_str());
        let line = run.state.line(run.state.progress(names));
        let code = finish(&run, &self.cases, false).unwrap();
        (begun, line, code == ExitCode::SUCCESS)
    }
}

#[test]
fn an_interrupted_run_is_gone_on_with_and_counts_nothing_twice() {
    let soak = soak();
    let victim = &soak.cases[3].name;
    let (begun, line, success) = soak.again(|case, stop| {
        if case.name == *victim {
            stop.ask();
            return Outcome::Unfinished;
        }
        Outcome::Passed
    });
    assert!(begun.len() < soak.cases.len() && begun.contains(victim) && !success);
    let done = begun.len() - 1;
    let expected = format!("soak: {done} of 40 cases so far, 0 failed");
    assert!(line.starts_with(&expected), "{line}");

    let (rest, line, success) = soak.again(|case, _| match case.name == *victim {
        true => Outcome::Failed("a test".into()),
        false => Outcome::Passed,
    });
    assert_eq!(rest.len(), soak.cases.len() - done);
    assert!(rest.contains(victim) && !success);
    assert_eq!(line, "soak: 40 cases, 1 failed, seed 1, commit c");

    // A failure stays a failure: no case is repeated until it passes.
    let (none, _, success) = soak.again(|_, _| Outcome::Passed);
    assert!(none.is_empty() && !success);
}

#[test]
fn a_whole_run_without_failures_is_a_success_and_cases_that_want_the_machine_have_it() {
    let busy = Mutex::new((0, 0));
    let (.., success) = soak().again(|case, _| {
        let now = {
            let mut busy = busy.lock().unwrap();
            busy.0 += 1;
            busy.1 = busy.1.max(busy.0);
            busy.0
        };
        assert!(!case.alone || now == 1, "{}", case.name);
        std::thread::sleep(Duration::from_millis(5));
        busy.lock().unwrap().0 -= 1;
        Outcome::Passed
    });
    let (left, most) = busy.into_inner().unwrap();
    assert!(success && left == 0);
    assert!(most <= graph::parallel(), "{most} at a time");
    assert!(most > 1 || graph::parallel() == 1);
}

#[test]
fn results_of_another_tree_are_not_kept() {
    let soak = soak();
    let changed = AtomicBool::new(false);
    let tree = || match changed.load(Ordering::Relaxed) {
        true => Ok("c+changes.1".to_owned()),
        false => same_tree(),
    };
    // One after the other, in this order.
    let mut alone = soak.cases.iter().filter(|case| case.alone);
    let (before, victim) = (&alone.next().unwrap().name, &alone.next().unwrap().name);
    let mut run = soak.run(&tree);
    let file = run.file.clone();
    let (_, result) = soak.go_on(&mut run, |case, _| {
        if case.name == *victim {
            // The result before is kept first.
            let kept = || std::fs::read_to_string(&file).unwrap_or_default();
            let end = Instant::now() + Duration::from_secs(60);
            while !kept().contains(before) {
                assert!(Instant::now() < end, "{before} was not kept");
                std::thread::sleep(Duration::from_millis(2));
            }
            changed.store(true, Ordering::Relaxed);
        }
        Outcome::Passed
    });
    let error = result.unwrap_err().to_string();
    assert!(error.contains("c+changes.1"), "{error}");
    let kept = soak.run(&tree).state.done;
    assert!(kept.contains_key(before) && !kept.contains_key(victim));
}

#[test]
fn logs_have_plain_names() {
    let name = log(Path::new("/l"), "fuzz walker, 10 cases");
    assert_eq!(name, Path::new("/l/fuzz-walker--10-cases.txt"));
}
