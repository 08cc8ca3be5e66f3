#!/bin/busybox sh
# Uses busybox's shell on Debian's kernels and on Granule, which must print the same. Only deliberate
# differences are left out: process IDs, times, files that are written, /proc, the terminal, stopped
# processes.
PATH=/bin; export PATH
# Linux has an empty /dev here.
[ -e /dev/null ] || mount -t devtmpfs dev /dev
echo "script begins"

echo "== words and loops"
greeting="hello world"; echo "$greeting" ${#greeting} "${greeting#hello }" "${greeting%% *}" "${none:-default}"
for i in 1 2 3; do printf '%d ' $((i * i)); done; echo
n=0; while [ $n -lt 5 ]; do n=$((n + 1)); [ $n = 3 ] && continue; [ $n = 5 ] && break; echo $n; done
until [ $n -eq 0 ]; do n=$((n - 1)); done; echo $n
case $greeting in hi*) echo hi;; hello*) echo case;; esac
fact() { if [ $1 -le 1 ]; then echo 1; else echo $(($1 * $(fact $(($1 - 1))))); fi; }
fact 6
set -- a "b c" d; echo $# "$2"; shift; echo "$*"
echo $((0x10 + 010 + 2 ** 5)) $((7 % 3)) $((1 << 20)) $((5 > 3 && 2 != 2))
while getopts ab: option -a -b value; do echo "option $option $OPTARG"; done
eval 'echo "evaluated $greeting"'

echo "== tests"
[ -f /etc/text ] && [ -d /etc ] && [ -L /etc/link ] && [ -x /bin/busybox ] && [ ! -e /none ] && echo tested
[ -s /etc/empty ] || echo empty
test 3 -gt 2 -a b '>' a && echo and
[ -c /dev/null ] && [ -c /dev/zero ] && echo devices

echo "== pipes and substitution"
cat /etc/text | grep -n o | wc -l
echo $(echo $(echo nested)) `echo quoted`
seq 1 1000 | sort -r | head -n 3
seq 1 20000 | wc -l
yes | head -n 2
printf '%s\n' b a c a | sort | uniq -c
seq 1 5 | while read line; do total=$((total + line)); echo $total; done | tail -n 1
seq 1 3 | xargs echo
echo one two three | awk '{ print $2, NF; x += NF } END { print x * 2.5 }'
sed -n 's/two/2/p; $p' /etc/text
tr a-z A-Z < /etc/text | cut -d' ' -f1
cat <<E
here $greeting
E
cat <<'E' | od -An -tx1
raw $greeting
E
head -c 5 /dev/zero | od -An -tx1
md5sum < /etc/text; sha256sum /etc/text
cat /etc/large | sha256sum; wc -c < /etc/large; tail -c 10 /etc/large | od -An -tx1
gzip -c /etc/large | gunzip -c | cmp - /etc/large && echo same
dd if=/etc/large bs=1000 skip=3 count=2 2>/dev/null | cksum
dd if=/dev/zero bs=65536 count=160 2>/dev/null | wc -c
basename /a/b.c .c; dirname /a/b.c; expr 3 + 4; expr abc : 'a\(.\)c'
(echo out; echo err >&2) 2>&1 | sort

echo "== files"
ls -l /etc | awk 'NR > 1 { print $1, $3, $4, $5, $9, $10, $11 }'
ls -ld /etc /bin/sh | cut -c 1-10
ls /bin | wc -l
cd /etc && pwd && cd - > /dev/null && pwd
readlink /etc/link; readlink -f /etc/link; cat /etc/link
find /etc -type f | sort; find / -name link -xdev
stat -c '%n %s %a %F' /etc/text /etc/link /etc/empty
exec 3< /etc/text; read first <&3; read second <&3; exec 3<&-; echo "$first/$second"
cat /none; echo $?
cat /etc; echo $?
/etc/text; echo $?
nothing; echo $?
od -An -c -N 8 /etc/large

echo "== processes"
(exit 3); echo $?
true && ! false && echo not
sh -c 'exit 42'; echo $?
sh -c 'echo $0 $1' zero one
env -i A=1 sh -c 'echo $A ${PATH:+path}'
sleep 0.2 & first=$!
(sleep 0.1; exit 7) & second=$!
wait $second; echo $?
wait $first; echo $?
for i in 1 2 3 4 5; do (exit $i) & done; wait; echo all
{ echo grouped; echo more; } | cat -n
sh -c 'kill -TERM $$'; echo $?
sh -c 'kill -USR1 $$'; echo $?
sh -c 'kill -SEGV $$' ; echo $?
# Whether the shell prints how a job ended depends on the time at which it checks.
end() { wait $1 2>/dev/null; echo $?; }
sleep 60 & kill $!; end $!
sleep 60 & kill -0 $! && echo alive; kill -9 $!; end $!
kill -0 $! 2>/dev/null || echo gone
# A background job of a script ignores the keyboard's signals, once it has started.
sleep 60 & sleep 1; kill -INT $!; kill -QUIT $!; sleep 0.1; kill -0 $! && echo unmoved; kill $!; end $!
timeout 0.1 sleep 60; echo $?
yes > /dev/null & kill $!; end $!

echo "== traps"
trap 'echo trapped' USR1; kill -USR1 $$; echo after
trap '' USR1; kill -USR1 $$; echo ignored
trap - USR1
(trap 'echo leaving' EXIT; exit 4); echo $?
sh -c 'trap "echo once; exit 5" TERM; (sleep 0.1; kill -TERM $$) & wait; echo never'; echo $?
sh -c 'trap "" PIPE; yes 2>/dev/null; echo $? >&2' | head -n 1
sh -c 'set -e; false; echo never'; echo $?
sh -u -c 'echo $nothing' 2>&1; echo $?
umask 027; umask

echo "== the machine"
uname -s -m; id -u; echo $HOME $TERM
ulimit -n > /dev/null && echo limits
echo "script ends"
# Waits until the output is written, which Linux does not do at its end. Our console is not a terminal.
stty opost 2> /dev/null || true
