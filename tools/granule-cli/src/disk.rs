//! A disk that firmware boots from: a GPT with an EFI system partition (FAT32) and the files in it, written
//! and read as an image file. The same files make the same bytes.
//!
//! The files on it are not chosen here.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};
use std::path::Path;

use fatfs::{Dir, FatType, FileSystem, FormatVolumeOptions, FsOptions, ReadWriteSeek};
use gpt::partition::Partition;
use gpt::{GptConfig, disk::LogicalBlockSize, mbr::ProtectiveMBR, partition_types};
use sha2::{Digest, Sha256};
use uuid::{Builder, Uuid};

/// A sector, as every virtual disk and every USB stick shows it.
const SECTOR: u64 = 512;
/// Where partitioning tools begin and end partitions; GPT's own sectors are outside.
const MARGIN: u64 = 1 << 20;
/// FAT32 has at least 65525 clusters. A smaller volume would be taken for FAT16.
const LEAST_VOLUME: u64 = 64 << 20;
/// Free room beside the files, for their clusters' ends and for what a user adds.
const FREE: u64 = 16 << 20;
/// A file that claims to be larger is not read.
const MOST_READ: u64 = 1 << 30;

/// A file on the disk: its path, with `/` between names, and its content.
pub type DiskFile = (String, Vec<u8>);

/// Writes the disk.
/// Fails with one line: the file cannot be written, or a path is none that FAT has.
pub fn write(to: &Path, files: &[DiskFile]) -> Result<(), String> {
    let complain = |what: String| format!("disk {}: {what}", to.display());
    let digest = digest(files);
    let volume = volume(files, &digest).map_err(|error| complain(error.to_string()))?;
    let make = || -> io::Result<File> {
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(to)?;
        file.set_len(MARGIN + volume.len() as u64 + MARGIN)?;
        // What is zero stays a hole.
        for (at, block) in (MARGIN..).step_by(BLOCK).zip(volume.chunks(BLOCK)) {
            if block.iter().any(|&byte| byte != 0) {
                file.seek(SeekFrom::Start(at))?;
                file.write_all(block)?;
            }
        }
        Ok(file)
    };
    let file = make().map_err(|error| complain(error.to_string()))?;
    partition(file, volume.len() as u64, &digest).map_err(|error| complain(error.to_string()))
}

const BLOCK: usize = 64 << 10;

fn digest(files: &[DiskFile]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for (path, content) in files {
        for part in [path.as_bytes(), content] {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
    }
    hasher.finalize().into()
}

/// An identifier out of the content, so that the same files make the same bytes.
fn identifier(digest: &[u8; 32], what: u8) -> Uuid {
    let hash = Sha256::digest([&digest[..], &[what]].concat());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash[..16]);
    Builder::from_custom_bytes(bytes).into_uuid()
}

fn partition(mut file: File, bytes: u64, digest: &[u8; 32]) -> Result<(), gpt::GptError> {
    let sectors = (bytes + 2 * MARGIN) / SECTOR - 1;
    let protective = ProtectiveMBR::with_lb_size(u32::try_from(sectors).unwrap_or(u32::MAX));
    protective
        .overwrite_lba0(&mut file)
        .map_err(|error| io::Error::other(error.to_string()))?;
    let config = GptConfig::new()
        .writable(true)
        .logical_block_size(LogicalBlockSize::Lb512);
    let mut disk = config.create_from_device(file, Some(identifier(digest, 0)))?;
    let system = Partition {
        part_type_guid: partition_types::EFI,
        part_guid: identifier(digest, 1),
        first_lba: MARGIN / SECTOR,
        last_lba: (MARGIN + bytes) / SECTOR - 1,
        flags: 0,
        name: "EFI system partition".to_owned(),
    };
    disk.update_partitions([(1, system)].into())?;
    disk.write()?.sync_all()?;
    Ok(())
}

/// The first moment that FAT can encode: files have no other, so that the same files make the same bytes.
#[derive(Debug)]
struct NoTime;

const FIRST_DAY: fatfs::Date = fatfs::Date {
    year: 1980,
    month: 1,
    day: 1,
};

impl fatfs::TimeProvider for NoTime {
    fn get_current_date(&self) -> fatfs::Date {
        FIRST_DAY
    }

    fn get_current_date_time(&self) -> fatfs::DateTime {
        let time = fatfs::Time {
            hour: 0,
            min: 0,
            sec: 0,
            millis: 0,
        };
        fatfs::DateTime {
            date: FIRST_DAY,
            time,
        }
    }
}

/// The bytes of the partition.
fn volume(files: &[DiskFile], digest: &[u8; 32]) -> io::Result<Vec<u8>> {
    let content: u64 = files.iter().map(|(_, content)| content.len() as u64).sum();
    // A sixteenth for the table of clusters.
    let bytes = (content + content / 16 + FREE)
        .max(LEAST_VOLUME)
        .next_multiple_of(MARGIN);
    let mut volume = Cursor::new(vec![0; usize::try_from(bytes).map_err(io::Error::other)?]);
    let [a, b, c, d, ..] = *digest;
    let options = FormatVolumeOptions::new()
        .fat_type(FatType::Fat32)
        .volume_id(u32::from_le_bytes([a, b, c, d]))
        .volume_label(*b"GRANULE    ");
    fatfs::format_volume(&mut volume, options)?;
    let system = FileSystem::new(&mut volume, FsOptions::new().time_provider(&NoTime))?;
    for (path, content) in files {
        let mut folder = system.root_dir();
        let mut names = path.split('/').filter(|name| !name.is_empty()).peekable();
        while let Some(name) = names.next() {
            if names.peek().is_some() {
                folder = folder.create_dir(name)?;
            } else {
                let mut file = folder.create_file(name)?;
                file.truncate()?;
                file.write_all(content)?;
                file.flush()?;
            }
        }
    }
    system.unmount()?;
    Ok(volume.into_inner())
}

/// The files of a disk's EFI system partition, in the order of its folders.
/// Fails with one line: the file cannot be read, or has no such partition.
pub fn read(from: &Path) -> Result<Vec<DiskFile>, String> {
    let complain = |what: String| format!("disk {}: {what}", from.display());
    let config = GptConfig::new().only_valid_headers(true);
    let disk = config
        .open(from)
        .map_err(|error| complain(error.to_string()))?;
    let mut partitions = disk.partitions().values();
    let system = partitions
        .find(|partition| partition.part_type_guid == partition_types::EFI)
        .ok_or_else(|| complain("it has no EFI system partition".to_owned()))?;
    let take = || -> io::Result<Vec<DiskFile>> {
        let start = system.bytes_start(LogicalBlockSize::Lb512)?;
        let length = system.bytes_len(LogicalBlockSize::Lb512)?;
        let mut file = File::open(from)?;
        file.seek(SeekFrom::Start(start))?;
        let mut volume = Vec::new();
        file.take(length.min(MOST_READ)).read_to_end(&mut volume)?;
        let system = FileSystem::new(Cursor::new(volume), FsOptions::new())?;
        let mut files = Vec::new();
        collect(&system.root_dir(), "", &mut files)?;
        Ok(files)
    };
    take().map_err(|error| complain(error.to_string()))
}

fn collect<T: ReadWriteSeek>(
    folder: &Dir<'_, T>,
    at: &str,
    into: &mut Vec<DiskFile>,
) -> io::Result<()> {
    for entry in folder.iter() {
        let entry = entry?;
        let name = entry.file_name();
        if name == "." || name == ".." {
            continue;
        }
        let path = format!("{at}/{name}");
        if entry.is_dir() {
            collect(&entry.to_dir(), &path, into)?;
        } else {
            let mut content = Vec::new();
            entry.to_file().read_to_end(&mut content)?;
            into.push((path, content));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> Vec<DiskFile> {
        let large: Vec<u8> = (0..3_000_000_u32).map(|n| (n >> 7) as u8).collect();
        vec![
            ("/EFI/BOOT/BOOTAA64.EFI".to_owned(), b"loader".to_vec()),
            ("/granule/Image".to_owned(), large),
            ("/granule/initramfs".to_owned(), Vec::new()),
            (
                "/loader/entries/granule-16k.conf".to_owned(),
                b"x\n".to_vec(),
            ),
        ]
    }

    #[test]
    fn what_is_written_is_read_back_and_the_tables_are_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        write(&path, &files()).unwrap();
        assert_eq!(read(&path).unwrap(), files());

        let disk = GptConfig::new().only_valid_headers(true).open(&path);
        let disk = disk.unwrap();
        let [system] = &disk.partitions().values().collect::<Vec<_>>()[..] else {
            panic!("{:?}", disk.partitions());
        };
        let bytes = std::fs::metadata(&path).unwrap().len();
        assert_eq!(system.bytes_start(LogicalBlockSize::Lb512).unwrap(), MARGIN);
        let length = system.bytes_len(LogicalBlockSize::Lb512).unwrap();
        assert_eq!(length, bytes - 2 * MARGIN);
        assert_eq!(system.name, "EFI system partition");
        let mut file = File::open(&path).unwrap();
        ProtectiveMBR::from_disk(&mut file, LogicalBlockSize::Lb512).unwrap();

        let mut volume = vec![0; usize::try_from(length).unwrap()];
        file.seek(SeekFrom::Start(MARGIN)).unwrap();
        file.read_exact(&mut volume).unwrap();
        let system = FileSystem::new(Cursor::new(volume), FsOptions::new()).unwrap();
        assert_eq!(system.fat_type(), FatType::Fat32);
        assert!(!system.read_status_flags().unwrap().dirty());
    }

    #[test]
    fn the_same_files_make_the_same_bytes_and_others_another_disk() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = |name: &str, files: &[DiskFile]| {
            let path = folder.path().join(name);
            write(&path, files).unwrap();
            std::fs::read(path).unwrap()
        };
        let once = bytes("a", &files());
        assert!(once == bytes("b", &files()));
        // An old disk in its place leaves nothing behind.
        let mut other = files();
        other[0].1 = b"loadar".to_vec();
        let guid = |disk: &[u8]| disk[512 + 56..512 + 72].to_vec();
        let different = bytes("b", &other);
        assert_ne!(guid(&once), guid(&different));
        assert!(once == bytes("b", &files()));
    }

    #[test]
    fn the_volume_grows_with_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        let large = vec![("/large".to_owned(), vec![7; 80 << 20])];
        write(&path, &large).unwrap();
        assert!(read(&path).unwrap() == large);
    }

    #[test]
    fn a_file_that_is_not_a_disk_is_refused_in_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        write(&path, &files()).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let refused = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let error = read(&path).unwrap_err();
            assert!(
                error.contains("disk.img") && !error.contains('\n'),
                "{error}"
            );
        };
        refused(b"");
        refused(&whole[..1 << 20]);
        let mut broken = whole.clone();
        broken[512 + 16] ^= 1;
        refused(&broken);
        let mut no_volume = whole;
        no_volume[1 << 20..(1 << 20) + 512].fill(0);
        refused(&no_volume);
        let nowhere = write(Path::new("/no/such/folder/disk.img"), &files());
        assert!(nowhere.unwrap_err().contains("/no/such/folder/disk.img"));
    }
}
