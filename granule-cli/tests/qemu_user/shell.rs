//! A shell that was not built for this kernel: Debian's static busybox, which is not part of the
//! repository. Whoever runs these says by `GRANULE_BUSYBOX` where its file is; `make test-peers`
//! fetches it.

use granule_cli::{Initramfs, Outcome, PageSize, Request};

use crate::machine::{ends, machine};

/// What a script does that uses a little of everything, and what that prints.
const SCRIPT: &str = r#"
echo hello
x=$(echo sub shell)
echo "$x" | cat | tr a-z A-Z
for i in 1 2 3; do echo $i; done | wc -l
if [ -f /etc/text ]; then cat /etc/text; echo; fi
sort <<E
b
a
E
(exit 3); echo status $?
sh -c 'kill -USR1 $$'; echo killed $?
trap 'echo trapped' USR1; kill -USR1 $$
sleep 0.01 & wait $!
echo waited $?
cd /etc; pwd; readlink link; ls
printf '%s\n' x y | while read line; do echo "line $line"; done
seq 1 3 | xargs echo
head -c 4 /dev/zero | od -An -tx1
echo nothing > /etc/new || echo refused
uname -s -m; id -u
find / -name link
echo end
"#;

const PRINTED: &[&str] = &[
    "hello",
    "SUB SHELL",
    "3",
    "0123456789",
    "a",
    "b",
    "status 3",
    "killed 138",
    "trapped",
    "waited 0",
    "/etc",
    "text",
    // In columns, as the console is a terminal.
    "link  text",
    "line x",
    "line y",
    "1 2 3",
    " 00 00 00 00",
    "refused",
    "Linux aarch64",
    "0",
    "/etc/link",
    "end",
];

#[test]
#[ignore = "needs Debian's busybox, which is not part of the repository: GRANULE_BUSYBOX=FILE"]
fn a_shell_runs_a_script_on_every_page_size() {
    let file = std::env::var_os("GRANULE_BUSYBOX").expect("GRANULE_BUSYBOX names busybox's file");
    let busybox = std::fs::read(&file).unwrap();
    for (size, cpus) in [(PageSize::K4, 1), (PageSize::K16, 2), (PageSize::K64, 4)] {
        let archive = Initramfs::new()
            .program("/bin/busybox", &busybox)
            .link("/bin/sh", "busybox")
            .file("/etc/text", b"0123456789")
            .link("/etc/link", "text")
            .program("/init", format!("#!/bin/sh\n{SCRIPT}").as_bytes());
        let request = Request {
            append: Some("rdinit=/bin/sh -- /init".into()),
            ..machine(size, cpus)
        };
        let ran = ends(&request, archive, Outcome::Ok);
        let lines: Vec<&str> = ran
            .console
            .lines()
            .map(|line| line.trim_end_matches('\r'))
            .collect();
        // In this order; the kernel says some between them.
        let mut lines = lines.iter();
        for printed in PRINTED {
            let found = lines.any(|line| line == printed);
            assert!(
                found,
                "no {printed:?} where it should be, {size:?}:\n{}",
                ran.console
            );
        }
        let frames = |when| ran.number(&format!("user.frames_{when}"));
        assert_eq!(frames("before"), frames("after"));
    }
}
