#!/bin/busybox sh
# Runs Debian's shell with its script, tests of memory, hostile programs, programs that fork and end each other, and
# the benchmark, with every page size, all at once. With the argument `alone` they have the kernel's page size, and run
# one after the other; with `few` there are fewer. Each line begins with the name of its program.
PATH=/bin; export PATH
set -o pipefail
TESTS="memory areas copies groups vfork preempt sizes instructions frames signal-storm"
BYTES=8388608
[ "$1" = few ] && TESTS="copies sizes instructions" && BYTES=2097152
named() {
    name=$1; shift
    "$@" 2>&1 | while IFS= read -r line; do echo "$name: $line"; done
    echo "$name: status $?"
}
if [ "$1" = alone ]; then
    named shell /init
    for test in $TESTS; do named $test /together/tests $test; done
    named bench /together/bench $BYTES 1
else
    for size in 4k 16k 64k; do
        named "$size shell" /together/pagesize $size /init &
        for test in $TESTS; do named "$size $test" /together/pagesize $size /together/tests $test & done
        named "$size bench" /together/pagesize $size /together/bench $BYTES 1 &
    done
    wait
fi
echo "together: ends"
