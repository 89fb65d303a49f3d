//! The words, by the command behind which they are typed. Each text is either commands to type instead, or begins with the reason
//! why there is no such command.

/// Words with one answer.
pub(super) type Answers = &'static [(&'static [&'static str], &'static str)];

/// What only the kernel does, with a file system that is mounted.
const MOUNTED: &str = "it needs a mounted file system, which is the kernel's job: mount a volume that ashlar serve DISK... --mount DIR \
     serves, and use btrfs-progs there";
/// What btrfs-progs do with a file system that is not mounted.
const PROGS: &str = "ashlar does not change the structures of a btrfs: btrfs-progs do that, on a volume that ashlar serve DISK... \
     --mount DIR serves";
/// What ashlar has no verb for.
const POOLS: &str = "ashlar has no such change of a pool: end its use with ashlar zpool export POOL, and use OpenZFS's zpool";
/// What OpenZFS does with file systems.
const DATASETS: &str = "ashlar has the volumes of a pool, not its file systems: end its use with ashlar zpool export POOL, and use \
     OpenZFS's zfs";
/// What mdadm does with firmware RAIDs.
const FIRMWARE: &str = "ashlar assembles arrays with md's own superblocks, not firmware RAIDs (DDF, Intel): mdadm does that";
/// How a file of the mount becomes a device.
const LOOP: &str = "type ashlar serve DISK... --mount DIR: volumes and partitions are files in DIR/dev, which losetup makes loop devices of";
/// How a file system is made or checked.
const FILE_SYSTEM: &str = "use the file system's own program on a file in DIR/dev, after ashlar serve DISK... --mount DIR";
const SERVE: &str = "type ashlar serve DISK...";
const STOP: &str = "type ashlar stop, or for one array ashlar md stop ARRAY";
const SHOW: &str = "type ashlar scan DISK... for disks, ashlar status for a running daemon";
const SCRUB: &str = "type ashlar md action ARRAY check, ashlar btrfs scrub start DISK... or ashlar zpool scrub POOL";
const FILE_BITMAP: &str = "ashlar has bitmaps beside the superblocks, and none in files: ashlar md grow ARRAY --bitmap=internal adds one";
const NO_DEVICES: &str = "ashlar makes no devices in /dev: ashlar serve DISK... --mount DIR serves arrays as files in DIR/dev";
/// What LVM makes, and ashlar reads.
const OTHER_VOLUMES: &str = "ashlar makes linear and striped volumes and snapshots with a size; it reads the RAID and thin volumes of LVM, \
     and an array of md below a physical volume has its copies: ashlar md create";
/// What keeps the properties of a volume.
const PROPERTIES: &str = "ashlar changes tags and activation: LVM changes this property, once ashlar stop has ended the daemon";
const NO_LOCKS: &str = "ashlar does not share groups with other hosts: ashlar lvm vgexport and vgimport hand a group over";
const SERVICE: &str =
    "run it in the background of a shell, or as a service: systemd-run ashlar md monitor";

/// The table. An option holds for the commands below, too. What is required and missing stands as in the parser's usage: `-V <SIZE>`.
pub(super) const TABLE: &[(&str, Answers)] = &[
    ("", TOP),
    ("md", MD),
    ("md assemble", ASSEMBLE),
    ("md create", CREATE),
    ("md grow", GROW),
    ("md monitor", MONITOR),
    ("lvm", LVM),
    ("lvm lvchange", LVM_CHANGES),
    ("lvm lvconvert", LVM_LVCONVERT),
    ("lvm lvcreate", LVM_LVCREATE),
    ("lvm pvcreate", LVM_PVCREATE),
    ("lvm pvscan", LVM_PVSCAN),
    ("lvm vgchange", LVM_CHANGES),
    ("btrfs", BTRFS),
    ("btrfs check", BTRFS_CHECK),
    ("btrfs device", BTRFS_DEVICE),
    ("btrfs filesystem", BTRFS_FILESYSTEM),
    ("btrfs filesystem usage", BTRFS_USAGE),
    ("btrfs inspect", BTRFS_INSPECT),
    ("btrfs rescue", BTRFS_RESCUE),
    ("btrfs subvolume", BTRFS_SUBVOLUME),
    ("btrfs filesystem show", BTRFS_SHOW),
    ("zpool", ZPOOL),
    ("zvol", ZVOL),
    ("zvol create", ZVOL_CREATE),
    ("zvol destroy", ZVOL_DESTROY),
    ("zvol rename", ZVOL_RENAME),
];

const TOP: Answers = &[
    (&["mdadm"], "type ashlar md, which takes mdadm's spelling, too"),
    (&["lvm2"], "type ashlar lvm"),
    (&["losetup", "kpartx", "partx", "partprobe", "loop"], LOOP),
    (
        &["qemu-nbd", "nbdkit", "nbd-server", "nbd", "share"],
        "type ashlar serve DISK... --nbd unix:PATH",
    ),
    (
        &["nbd-client", "connect"],
        "nbd-client and others connect to ashlar serve DISK... --nbd unix:PATH; another server's export is a disk of ashlar serve nbd://HOST/EXPORT",
    ),
    (
        &["mount", "fuse"],
        "type ashlar serve DISK... --mount DIR, and then mount -o loop DIR/dev/NAME DIRECTORY",
    ),
    (&["start", "up", "attach", "open", "daemon", "run", "server", "activate"], SERVE),
    (
        &[
            "umount",
            "unmount",
            "fusermount",
            "disconnect",
            "detach",
            "down",
            "close",
            "quit",
            "exit",
            "kill",
            "shutdown",
            "deactivate",
        ],
        STOP,
    ),
    (&["lsblk", "blkid", "list", "info", "show", "tree", "probe", "display", "ps", "find"], SHOW),
    (&["mdstat"], "type ashlar get proc/mdstat"),
    (
        &["dmsetup", "blkdeactivate"],
        "ashlar loads no tables by hand: ashlar lvm makes volumes, ashlar status shows the devices of a daemon",
    ),
    (&["sysctl", "sysfs", "attributes"], "type ashlar get, or ashlar set PATH VALUE"),
    (
        &["wipefs", "wipe", "erase", "zero"],
        "wipefs erases signatures of all kinds; those of md alone: ashlar md zero-superblock DISK",
    ),
    (
        &[
            "mkfs",
            "mkfs.ext4",
            "mkfs.xfs",
            "mkfs.btrfs",
            "mke2fs",
            "mkswap",
            "fsck",
            "e2fsck",
            "xfs_repair",
            "tune2fs",
        ],
        FILE_SYSTEM,
    ),
    (&["resize2fs", "xfs_growfs", "xfs_info", "blockdev", "fstrim", "dd"], FILE_SYSTEM),
    (
        &["fdisk", "gdisk", "sgdisk", "sfdisk", "parted"],
        "ashlar reads partition tables and makes none: use the program on the disk, image or file in DIR/dev itself",
    ),
    (
        &["cryptsetup", "luks", "veritysetup"],
        "ashlar opens no encrypted volumes: use the program on a loop device of a file in the mount of ashlar serve",
    ),
    (
        &["bcache", "make-bcache", "vdo", "multipath", "drbdadm", "dmeventd"],
        "ashlar has no such devices: it knows md, LVM, btrfs and volumes of ZFS pools",
    ),
    (&["dmraid", "mdmon"], FIRMWARE),
    (
        &["ddrescue", "ddrescueview"],
        "ddrescue makes an image and its map, which ashlar scan IMAGE --map MAP reads",
    ),
    (&["btrace", "blktrace", "blkparse", "btt", "biosnoop"], "type ashlar trace"),
    (&["iostat", "iotop", "dstat"], "type ashlar top"),
    (&["check", "verify", "repair"], SCRUB),
    (&["scrub"], SCRUB),
    (
        &["rebuild", "recover", "resync"],
        "type ashlar md add ARRAY DISK, or ashlar md action ARRAY resync",
    ),
    (
        &["snap", "snapshots"],
        "type ashlar lvm lvcreate --snapshot, or ashlar zvol snapshot POOL/VOLUME@NAME",
    ),
    (&["cp", "copy", "extract", "files"], "type ashlar btrfs get PATH DEST DISK..."),
    (&["log", "logs"], "type ashlar serve DISK... --log FILE"),
    (&["config", "configure"], "type ashlar serve --config FILE"),
    (&["metrics", "prometheus"], "type ashlar serve DISK... --metrics tcp:PORT"),
    (&["bench", "benchmark", "fio"], "ashlar-bench is a program of its own"),
    (&["version"], "type ashlar --version"),
];

const MD: Answers = &[
    (
        &["start", "run", "up", "--run", "-R"],
        "type ashlar serve DISK..., or for arrays that wait for members ashlar md incremental --run --scan",
    ),
    (
        &["list", "ls", "arrays", "mdstat"],
        "type ashlar md detail --scan, or ashlar get proc/mdstat",
    ),
    (
        &["status", "info", "show", "display"],
        "type ashlar md detail ARRAY, or ashlar md query DISK",
    ),
    (
        &["check", "scrub", "verify", "repair", "resync", "--check"],
        "type ashlar md action ARRAY check, or ashlar md action ARRAY repair",
    ),
    (&["rebuild", "recover", "spare"], "type ashlar md add ARRAY DISK"),
    (
        &["delete", "destroy", "erase", "wipe", "zero"],
        "type ashlar md stop ARRAY, and then ashlar md zero-superblock DISK...",
    ),
    (&["resize", "extend", "expand", "reshape", "convert"], "type ashlar md grow ARRAY --size=max"),
    (&["rename"], "type ashlar md assemble --update=name --name=NAME DISK..."),
    (&["mount", "open", "activate"], SERVE),
    (&["follow", "watch"], "type ashlar md monitor"),
    (&["--kill-subarray", "--update-subarray", "--detail-platform"], FIRMWARE),
    (
        &["--auto-detect"],
        "the kernel finds arrays by the type of their partition; type ashlar serve DISK..., or ashlar md assemble --scan",
    ),
    (
        &["--dump", "--restore"],
        "ashlar does not save superblocks: copy the disks, or the first and the last 2 MiB of each",
    ),
    (
        &["--config", "-c"],
        "ashlar reads no mdadm.conf: name the disks, or type ashlar md assemble --scan",
    ),
    (&["--udev-rules", "--rebuild-map"], NO_DEVICES),
    (&["--cluster-confirm", "--home-cluster", "--nodes"], "ashlar has no arrays of clusters"),
    (&["--sparc-update"], "mdadm does it: superblocks of an old kernel for SPARC are not read"),
    (&["--test", "-t"], "type ashlar md detail --test ARRAY"),
    (
        &["--wait-clean"],
        "type ashlar md wait ARRAY; an array that ashlar md stop ARRAY has stopped is clean",
    ),
    (&["--offroot"], "mdadm has it for its own processes at the start of the system"),
    (&["--add-journal", "--write-journal"], "ashlar has no journals of arrays"),
    (&["--prefer", "--auto", "--symlinks"], NO_DEVICES),
];

const ASSEMBLE: Answers = &[
    (
        &["--invalid-backup"],
        "type ashlar md assemble --force: what the reshape was moving may be wrong then",
    ),
    (
        &["-m", "--super-minor"],
        "type ashlar md assemble --scan --uuid=UUID: the UUID is certain, a number is not",
    ),
    (&["--bitmap", "-b"], FILE_BITMAP),
    (
        &["--no-degraded"],
        "that is the rule: only ashlar md assemble --run starts an array with fewer members than last time",
    ),
];

const CREATE: Answers = &[
    (&["--symlinks", "--auto", "-a"], NO_DEVICES),
    (&["--logical-block-size"], "it is that of the disks"),
    (&["--readonly", "-o"], "the array is not started: type ashlar serve --read-only DISK... then"),
    (
        &["--delay", "-d"],
        "the bitmap is written at the interval that mdadm chooses, too: 5 seconds",
    ),
];

const GROW: Answers = &[
    (
        &["--backup-file", "--continue", "--freeze-reshape"],
        "ashlar starts no reshape; one that was interrupted: ashlar serve DISK... --backup-file FILE reads the array",
    ),
    (&["--array-size", "-Z"], "type ashlar md grow ARRAY --size=SIZE"),
    (
        &["--data-offset"],
        "ashlar starts no reshape: only ashlar md create --data-offset says where the data begin",
    ),
    (
        &["--consistency-policy", "-k"],
        "type ashlar md grow ARRAY --bitmap=internal; a partial parity log is made by ashlar md create -k ppl",
    ),
];

const MONITOR: Answers = &[
    (&["--daemonise", "--daemonize", "-f", "--pid-file", "-i"], SERVICE),
    (
        &["--increment", "-r"],
        "events of a rebuild come at every 20 percent: type ashlar md wait ARRAY to see more",
    ),
    (&["--no-sharing"], "spares are not moved between arrays, and each monitor runs alone"),
];

const LVM: Answers = &[
    (&["--shared", "--lock-type", "--lock-start", "--lock-stop"], NO_LOCKS),
    (&["--metadataprofile"], "ashlar has no profiles: give their settings as options"),
];

const LVM_CHANGES: Answers = &[
    (&["--refresh"], "there is nothing to load again: a daemon loads each change at once"),
    (&["--permission", "-p", "--alloc", "--readahead", "-r", "--persistent", "-M"], PROPERTIES),
    (&["--setautoactivation", "--setactivationskip", "-k", "--zero", "-Z"], PROPERTIES),
    (&["--logicalvolume", "-l", "--maxphysicalvolumes", "--resizeable", "-x"], PROPERTIES),
    (&["--uuid", "-u", "--systemid", "--physicalextentsize", "-s"], PROPERTIES),
    (
        &["--syncaction"],
        "LVM checks its RAID volumes itself: ashlar only reads them; an array of md: ashlar md action ARRAY check",
    ),
    (&["--discards", "--errorwhenfull", "--cachemode", "--cachepolicy"], OTHER_VOLUMES),
];

const LVM_LVCONVERT: Answers = &[
    (&["--type", "--mirrors", "-m", "--thinpool", "-T", "--thin", "--cachepool"], OTHER_VOLUMES),
    (&["--cache", "-H", "--cachevol", "--splitcache", "--uncache", "--vdopool"], OTHER_VOLUMES),
    (&["--repair", "--replace", "--mirrorlog", "--swapmetadata", "--poolmetadata"], OTHER_VOLUMES),
    (&["--splitmirrors", "--trackchanges", "--mergemirrors", "--mergethin"], OTHER_VOLUMES),
    (
        &["--splitsnapshot", "--snapshot", "-s", "--mergesnapshot"],
        "type ashlar lvm lvconvert --merge VG/SNAPSHOT, or to discard it ashlar lvm lvremove VG/SNAPSHOT",
    ),
];

const LVM_LVCREATE: Answers = &[
    (&["--type", "--mirrors", "-m", "--mirrorlog", "--nosync", "--regionsize"], OTHER_VOLUMES),
    (&["--thin", "-T", "--thinpool", "--virtualsize", "-V", "--poolmetadatasize"], OTHER_VOLUMES),
    (&["--cache", "-H", "--cachepool", "--cachevol", "--cachemode", "--vdo"], OTHER_VOLUMES),
    (&["--contiguous", "-C"], "type ashlar lvm lvcreate --alloc contiguous"),
    (&["--version"], "type ashlar --version"),
    (
        &["--setactivationskip", "-k", "--setautoactivation", "--ignoreactivationskip", "-K"],
        "ashlar serve has all volumes active; later ashlar lvm lvchange -a n VG/LV has one inactive",
    ),
    (
        &["--readahead", "-r", "--persistent", "-M", "--minor", "-j"],
        "it is for the kernel's device mapper, which ashlar does not use",
    ),
];

const LVM_PVCREATE: Answers = &[(
    &["--dataalignmentoffset"],
    "type ashlar lvm pvcreate --dataalignment SIZE: the first extent begins at a multiple of it",
)];

const LVM_PVSCAN: Answers = &[(
    &["--cache", "--activate", "-a", "--listvg", "--listlvs", "--vgonline", "--udevoutput"],
    "ashlar keeps no cache of devices: ashlar lvm pvscan --devices DISK,... reads disks, and ashlar serve DISK... activates what is on them",
)];

const BTRFS: Answers = &[
    (&["balance", "quota", "qgroup", "send", "receive", "replace", "property", "reflink"], MOUNTED),
    (&["mount", "snapshot", "create", "defragment", "resize", "label", "sync"], MOUNTED),
    (&["fsck"], "type ashlar btrfs check DISK..."),
    (&["convert", "tune", "mkfs", "map-logical"], PROGS),
    (&["super-recover"], "type ashlar btrfs rescue super-recover DISK..."),
    (&["dump-super", "dump-tree"], "type ashlar btrfs inspect super, or ashlar btrfs inspect tree"),
    (
        &["df", "usage"],
        "type ashlar btrfs filesystem df DISK..., or ashlar btrfs filesystem usage DISK...",
    ),
    (&["du"], "type ashlar btrfs ls -l PATH DISK..."),
    (&["cp", "copy", "extract"], "type ashlar btrfs get PATH DEST DISK..."),
    (&["repair", "verify"], "type ashlar btrfs scrub start DISK..."),
    (&["version"], "type ashlar --version"),
];

const BTRFS_CHECK: Answers = &[
    (&["--repair", "--init-csum-tree", "--init-extent-tree"], PROGS),
    (&["--clear-space-cache", "--clear-ino-cache"], PROGS),
    (&["--check-data-csum"], "type ashlar btrfs scrub start --readonly DISK..."),
    (
        &["-s", "--super", "-b", "--backup", "-r", "--tree-root", "--chunk-root"],
        "ashlar uses the newest good superblock and the trees that it names; ashlar btrfs inspect super -fa DISK... prints the others",
    ),
    (
        &["--mode", "-p", "--progress"],
        "there is one mode, which needs little memory, and no progress",
    ),
    (
        &["-Q", "--qgroup-report", "-E", "--subvol-extents"],
        "ashlar does not check quota groups and sharing: btrfs check --readonly does",
    ),
];

const BTRFS_RESCUE: Answers = &[
    (
        &["zero-log"],
        "the log has what the last fsyncs wrote, and a mount replays it; if it prevents the mount, ashlar btrfs get PATH DEST DISK... saves the files first, and btrfs rescue zero-log then discards it",
    ),
    (&["chunk-recover", "fix-device-size", "clear-uuid-tree", "clear-space-cache"], PROGS),
    (&["clear-ino-cache"], PROGS),
    (&["create-control-device"], "ashlar makes no devices in /dev, and needs none"),
];

const BTRFS_DEVICE: Answers = &[
    (
        &["-z", "--reset"],
        "ashlar does not change the counters: btrfs device stats -z does, where the file system is mounted",
    ),
    (&["add", "delete", "remove", "replace"], MOUNTED),
    (
        &["scan", "ready"],
        "type ashlar btrfs filesystem show DISK...: the devices are found by their superblocks",
    ),
];

const BTRFS_USAGE: Answers = &[(
    &["-T", "--tabular"],
    "type ashlar btrfs device usage DISK..., or without it ashlar btrfs filesystem usage DISK...",
)];

const BTRFS_SHOW: Answers = &[(
    &["<DEVICE>...", "--all-devices", "-d", "--mounted", "-m"],
    "ashlar looks only at disks that are named: type ashlar btrfs filesystem show DISK...",
)];

const BTRFS_FILESYSTEM: Answers = &[
    (&["du"], "type ashlar btrfs ls -l PATH DISK..."),
    (&["defragment", "resize", "sync", "mkswapfile", "balance", "commit-stats"], MOUNTED),
];

const BTRFS_INSPECT: Answers = &[
    (
        &["tree-stats"],
        "type ashlar btrfs inspect tree DISK..., or ashlar btrfs inspect usage DISK...",
    ),
    (&["min-dev-size", "map-swapfile"], MOUNTED),
];

const BTRFS_SUBVOLUME: Answers = &[
    (&["create", "delete", "snapshot", "set-default", "sync"], MOUNTED),
    (
        &["get-default", "find-new"],
        "type ashlar btrfs subvolume list DISK..., or ashlar btrfs ls -l PATH DISK...",
    ),
];

const ZPOOL: Answers = &[
    (&["remove", "split", "initialize", "trim", "reopen", "reguid", "resilver"], POOLS),
    (&["upgrade", "checkpoint", "sync", "ddtprune", "prefetch"], POOLS),
    (&["iostat"], "type ashlar top, or ashlar zpool status"),
    (&["history", "events"], "type ashlar zpool status; the log of ashlar serve has what happened"),
    (&["wait"], "type ashlar zpool scrub --wait POOL"),
    (&["snapshot"], "type ashlar zvol snapshot POOL/VOLUME@NAME"),
    (&["version"], "type ashlar zpool status, which names the release of OpenZFS"),
];

const ZVOL_CREATE: Answers = &[(&["-V <SIZE>"], DATASETS)];

const ZVOL_RENAME: Answers =
    &[(&["-p", "-u", "-f"], "the parent must exist, and volumes are not mounted: omit it")];

const ZVOL_DESTROY: Answers = &[
    (&["-R"], "type ashlar zvol list -o name,origin to see its clones, and destroy these first"),
    (&["-f"], "nothing is forced: a volume that is in use is not destroyed"),
];

const ZVOL: Answers = &[
    (
        &["send", "receive", "recv", "redact"],
        "libzpool's functions for streams differ from release to release, and ashlar does not call them: copy a volume's \
         file in DIR/dev/zvol of ashlar serve DISK... --mount DIR, or end the pool's use with ashlar zpool export POOL, \
         and use OpenZFS's zfs",
    ),
    (&["bookmark", "hold", "holds", "release", "diff"], DATASETS),
    (
        &["mount", "unmount", "umount", "share", "unshare", "upgrade", "project", "program"],
        DATASETS,
    ),
    (&["allow", "unallow", "userspace", "groupspace", "projectspace", "jail", "unjail"], DATASETS),
    (&["load-key", "unload-key", "change-key", "zone", "unzone", "wait"], DATASETS),
    (&["resize", "grow", "extend", "volsize"], "type ashlar zvol set volsize=SIZE POOL/VOLUME"),
    (&["delete", "remove", "rm"], "type ashlar zvol destroy POOL/VOLUME"),
    (
        &["show", "info", "ls", "status"],
        "type ashlar zvol list, or ashlar zvol get all POOL/VOLUME",
    ),
    (&["version"], "type ashlar zpool status, which names the release of OpenZFS"),
];
