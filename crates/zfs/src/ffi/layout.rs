//! The layouts that the declarations assume, compared with those of the installed headers.

use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::process::Command;

use super::dmu::{DmuBuf, ObjectInfo};
use super::replay::{Bookmark, LogHead, LogHeader};
use super::transaction::MAX_TRANSACTION_BYTES;
use super::zil::{Itx, RecordHeader, TruncateRecord, WriteRecord, WriteState, Zgd};

/// C expressions, and the values expected here.
fn expectations() -> Vec<(&'static str, u64)> {
    let sizes = [
        ("sizeof (lr_t)", size_of::<RecordHeader>()),
        ("sizeof (lr_write_t)", size_of::<WriteRecord>()),
        ("sizeof (lr_truncate_t)", size_of::<TruncateRecord>()),
        ("sizeof (zgd_t)", size_of::<Zgd>()),
        ("sizeof (dmu_buf_t)", size_of::<DmuBuf>()),
        ("offsetof (lr_t, lrc_txtype)", offset_of!(RecordHeader, kind)),
        ("offsetof (lr_t, lrc_reclen)", offset_of!(RecordHeader, len_bytes)),
        ("offsetof (lr_t, lrc_txg)", offset_of!(RecordHeader, group)),
        ("offsetof (lr_t, lrc_seq)", offset_of!(RecordHeader, sequence)),
        ("offsetof (lr_write_t, lr_foid)", offset_of!(WriteRecord, object)),
        ("offsetof (lr_write_t, lr_offset)", offset_of!(WriteRecord, offset_bytes)),
        ("offsetof (lr_write_t, lr_length)", offset_of!(WriteRecord, len_bytes)),
        ("offsetof (lr_write_t, lr_blkoff)", offset_of!(WriteRecord, block_offset)),
        ("offsetof (lr_write_t, lr_blkptr)", offset_of!(WriteRecord, block_pointer)),
        ("offsetof (lr_truncate_t, lr_foid)", offset_of!(TruncateRecord, object)),
        ("offsetof (lr_truncate_t, lr_offset)", offset_of!(TruncateRecord, offset_bytes)),
        ("offsetof (lr_truncate_t, lr_length)", offset_of!(TruncateRecord, len_bytes)),
        ("offsetof (itx_t, itx_private)", offset_of!(Itx, private)),
        ("offsetof (itx_t, itx_wr_state)", offset_of!(Itx, write_state)),
        ("offsetof (itx_t, itx_sync)", offset_of!(Itx, sync)),
        ("offsetof (itx_t, itx_callback)", offset_of!(Itx, callback)),
        ("offsetof (itx_t, itx_callback_data)", offset_of!(Itx, callback_data)),
        ("offsetof (itx_t, itx_size)", offset_of!(Itx, size_bytes)),
        ("offsetof (itx_t, itx_oid)", offset_of!(Itx, object)),
        ("offsetof (itx_t, itx_gen)", offset_of!(Itx, generation)),
        ("offsetof (itx_t, itx_lr)", size_of::<Itx>()),
        ("offsetof (zgd_t, zgd_lwb)", offset_of!(Zgd, log_block)),
        ("offsetof (zgd_t, zgd_bp)", offset_of!(Zgd, block_pointer)),
        ("offsetof (zgd_t, zgd_db)", offset_of!(Zgd, buffer)),
        ("offsetof (zgd_t, zgd_lr)", offset_of!(Zgd, range)),
        ("offsetof (zgd_t, zgd_private)", offset_of!(Zgd, private)),
        ("offsetof (dmu_buf_t, db_offset)", offset_of!(DmuBuf, offset_bytes)),
        ("offsetof (dmu_buf_t, db_size)", offset_of!(DmuBuf, size_bytes)),
        ("offsetof (dmu_buf_t, db_data)", offset_of!(DmuBuf, data)),
        (
            "offsetof (dmu_object_info_t, doi_data_block_size)",
            offset_of!(ObjectInfo, data_block_bytes),
        ),
        ("offsetof (dmu_object_info_t, doi_max_offset)", offset_of!(ObjectInfo, max_offset_bytes)),
        ("sizeof (dmu_object_info_t)", size_of::<ObjectInfo>()),
        ("sizeof (((dmu_object_info_t *)0)->doi_data_block_size)", 4),
        ("sizeof (blkptr_t)", 128),
        ("offsetof (blkptr_t, blk_prop)", 6 * 8),
        ("sizeof (itx_wr_state_t)", 4),
        ("sizeof (boolean_t)", 4),
        // The header that defines zilog_t includes one that is not installed.
        ("sizeof (kmutex_t) + 2 * sizeof (void *)", offset_of!(LogHead, header)),
        ("sizeof (zil_header_t)", size_of::<LogHeader>()),
        ("offsetof (zil_header_t, zh_claim_txg)", offset_of!(LogHeader, claim_group)),
        ("offsetof (zil_header_t, zh_replay_seq)", offset_of!(LogHeader, replayed_sequence)),
        ("offsetof (zil_header_t, zh_log)", offset_of!(LogHeader, first)),
        ("offsetof (zil_header_t, zh_claim_blk_seq)", offset_of!(LogHeader, claimed_block)),
        ("offsetof (zil_header_t, zh_flags)", offset_of!(LogHeader, flags)),
        ("offsetof (zil_header_t, zh_claim_lr_seq)", offset_of!(LogHeader, claimed_sequence)),
        ("sizeof (zbookmark_phys_t)", size_of::<Bookmark>()),
        ("ZIL_REPLAY_NEEDED", 1),
        ("ZIL_CLAIM_LR_SEQ_VALID", 2),
        ("ZIO_FLAG_CANFAIL", 1 << 7),
        ("ZIO_PRIORITY_SYNC_READ", 0),
        ("(unsigned)ZB_ZIL_LEVEL == (unsigned)-2", 1),
        ("WR_INDIRECT", WriteState::Indirect as usize),
        ("WR_COPIED", WriteState::Copied as usize),
        ("WR_NEED_COPY", WriteState::NeedCopy as usize),
        ("TX_WRITE", 9),
        ("TX_TRUNCATE", 10),
        ("DMU_OST_ZVOL", 3),
        ("ZFS_SYNC_STANDARD", 0),
        ("ZFS_SYNC_ALWAYS", 1),
        ("ZFS_SYNC_DISABLED", 2),
        ("ZFS_LOGBIAS_THROUGHPUT", 1),
        ("ECKSUM == EBADE", 1),
        ("SPA_MAXBLOCKSIZE", 16 << 20),
    ];
    let mut all: Vec<_> = sizes.map(|(name, here)| (name, here as u64)).to_vec();
    all.push(("DMU_MAX_ACCESS / 2", MAX_TRANSACTION_BYTES));
    all
}

/// Prints a reason to skip, unless the test must not be skipped.
fn skip(reason: &str) {
    assert!(std::env::var_os("CI").is_none(), "{reason}");
    println!("skipped: {reason}");
}

#[test]
fn layouts_are_those_of_the_installed_headers() {
    let mut source = String::from(
        "#include <stdio.h>\n#include <stddef.h>\n#include <sys/zfs_context.h>\n#include <sys/dmu.h>\n#include <sys/zil.h>\n\
         #include <sys/spa.h>\nint main(void) {\n",
    );
    let expected = expectations();
    for (expression, _) in &expected {
        writeln!(source, "printf(\"%llu\\n\", (unsigned long long)({expression}));").unwrap();
    }
    source.push_str("return 0; }\n");
    let Ok(flags) = Command::new("pkg-config").args(["--cflags", "libzfs"]).output() else {
        return skip("no pkg-config");
    };
    if !flags.status.success() {
        return skip("no headers of libzfs (Debian: libzfslinux-dev)");
    }
    let directory = std::env::temp_dir().join(format!("ashlar-zfs-layout-{}", std::process::id()));
    std::fs::create_dir_all(directory.join("sys")).unwrap();
    // Not packaged; nothing compared depends on it.
    let missing = "struct abd_scatter { int none; };\nstruct abd_linear { void *abd_buf; };\n";
    std::fs::write(directory.join("sys/abd_os.h"), missing).unwrap();
    let (file, program) = (directory.join("layout.c"), directory.join("layout"));
    std::fs::write(&file, source).unwrap();
    let flags = String::from_utf8(flags.stdout).unwrap();
    let compiled = Command::new("cc")
        .arg("-w")
        .args(flags.split_whitespace())
        .arg("-I")
        .arg(&directory)
        .arg(&file)
        .arg("-o")
        .arg(&program)
        .output();
    let Ok(compiled) = compiled else {
        std::fs::remove_dir_all(&directory).unwrap();
        return skip("no C compiler");
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let printed = Command::new(&program).output().unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    let printed = String::from_utf8(printed.stdout).unwrap();
    let there: Vec<u64> = printed.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(there.len(), expected.len());
    for ((expression, here), there) in expected.iter().zip(there) {
        assert_eq!(*here, there, "{expression}");
    }
}
