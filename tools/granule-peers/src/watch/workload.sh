#!/bin/busybox sh
# The first process of a Linux that is watched: one line for each step, `done: NAME` or `FAILED: NAME`.
# Then it leaves for the next kernel, /next.
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev

step() {
    if "$1"; then echo "done: $1"; else echo "FAILED: $1"; fi
}

programs() {
    for i in 1 2 3 4 5 6 7 8 9 10; do
        [ "$(/bin/echo $i | /bin/cat)" = $i ] || return 1
    done
    dd if=/proc/kallsyms of=/file bs=64k count=16 2>/dev/null && sha256sum /file >/dev/null
}

memory() {
    granule-user-memory
}

thp() {
    size=$(cat /sys/kernel/mm/transparent_hugepage/hpage_pmd_size)
    before=$(sed -n 's/^thp_fault_alloc //p' /proc/vmstat)
    granule-user-memory thp "$size" &&
        [ "$(sed -n 's/^thp_fault_alloc //p' /proc/vmstat)" -gt "$before" ]
}

# Linux is known to lose huge pages in `fork` (docs/findings.md). The program then exits with 2, and is run again.
huge() {
    for i in $(seq 50); do
        granule-user-memory huge "$1"
        code=$?
        [ $code = 2 ] || return $code
        echo "lost in fork: $1 KiB"
    done
    return 1
}

# Tests each size of which three pages take no more than a tenth of a GiB. Free memory may be fragmented, so it is
# compacted.
hugetlb() {
    sizes=0
    for folder in /sys/kernel/mm/hugepages/hugepages-*kB; do
        kib=${folder##*-}
        kib=${kib%kB}
        [ "$kib" -le 32768 ] || continue
        for i in $(seq 10); do
            echo 3 >"$folder/nr_hugepages"
            [ "$(cat "$folder/nr_hugepages")" != 3 ] || break
            echo 1 >/proc/sys/vm/compact_memory
        done
        huge "$kib" ||
            { echo "$(cat "$folder/nr_hugepages") of 3 pages of $kib KiB"; return 1; }
        echo 0 >"$folder/nr_hugepages"
        sizes=$((sizes + 1))
    done
    [ $sizes -ge 2 ]
}

modules() {
    for i in 1 2 3; do
        insmod /modules/dummy.ko && [ -e /sys/module/dummy ] && rmmod dummy || return 1
    done
}

cpus() {
    for online in /sys/devices/system/cpu/cpu[1-9]/online; do
        [ -e "$online" ] || continue
        echo 0 >"$online" && [ "$(cat "$online")" = 0 ] && echo 1 >"$online" || return 1
    done
}

blocks() {
    ls /sys/devices/system/memory | grep -c 'memory[0-9]'
}

# Waits until there are more or fewer blocks of memory than before.
blocks_are() {
    for i in $(seq 300); do
        [ "$(blocks)" "$1" "$before" ] && return 0
        sleep 0.1
    done
    return 1
}

# A device with memory comes with its module; the monitor of the machine reads the second serial port.
hotplug() {
    before=$(blocks)
    for module in virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_mem; do
        [ ! -e /modules/$module.ko ] || insmod /modules/$module.ko || return 1
    done
    blocks_are -gt || return 1
    granule-user-memory || return 1
    echo 'qom-set /machine/peripheral/hotplug requested-size 0' >/dev/ttyAMA1
    blocks_are -eq
}

for name in programs memory thp hugetlb modules cpus hotplug; do step $name; done
echo "done: kexec"
granule-user-leave /next 50000000
echo "FAILED: kexec"
poweroff -f
