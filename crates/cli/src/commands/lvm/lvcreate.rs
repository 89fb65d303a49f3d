//! `ashlar lvm lvcreate`: new volumes and snapshots.

use std::process::ExitCode;

use ashlar_block::Sectors;
use ashlar_lvm::VolumeGroup;
use ashlar_lvm::activate::dm_name;
use ashlar_lvm::alloc::{Policy, Wish};
use ashlar_lvm::change::NewVolume;
use ashlar_lvm::metadata::Allocation;
use clap::{ArgAction, Args};

use super::archive::Archives;
use super::session::{Draft, Session, Zeroes, with};
use super::sizes::{self, Extents, Of};
use super::{Changing, Devices, split_name};
use crate::disks::Access;
use crate::error::{Error, Result};
use crate::output;

/// How many bytes of a new volume are zeroed, so that no signature of an earlier one is found there.
const ZEROED: u64 = 4096;
/// LVM's default chunk size of snapshots, and stripe size.
const CHUNK: Sectors = Sectors(8);
const STRIPE: Sectors = Sectors(128);

/// Make a logical volume, or a snapshot of one
///
/// Zeroes the first 4 KiB of a new volume, so that old signatures on the disk do not reappear
/// there.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  ashlar lvm lvcreate --devices a.img,b.img -n data -L 4G vg
  ashlar lvm lvcreate --devices a.img,b.img -n fast -l 100%FREE -i 2 -I 64 vg
  ashlar lvm lvcreate --devices a.img,b.img -s -n before -l 20%ORIGIN -c 64 vg/data")]
pub(crate) struct Lvcreate {
    #[command(flatten)]
    disks: Devices,

    #[command(flatten)]
    changing: Changing,

    #[command(flatten)]
    size: Size,

    /// The name [default: lvol0 or the next free number]
    #[arg(short, long, value_name = "LV")]
    name: Option<String>,

    /// Make a snapshot of the named volume; the size is that of the space for changes
    #[arg(short, long)]
    snapshot: bool,

    /// Chunk size of the snapshot, in KiB or with a unit: 4K to 512K
    #[arg(short, long, value_name = "SIZE", default_value = "4", value_parser = sizes::small_size)]
    chunksize: Sectors,

    /// Number of stripes, each on a physical volume of its own
    #[arg(short = 'i', long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=128))]
    stripes: u32,

    /// Amount of data on one stripe before the next, in KiB or with a unit [default: 64K]
    #[arg(short = 'I', long, value_name = "SIZE", value_parser = sizes::small_size)]
    stripesize: Option<Sectors>,

    /// Permission: r or rw
    #[arg(short, long, value_name = "r|rw", default_value = "rw", value_parser = ["r", "rw"])]
    permission: String,

    /// A tag for the administrator; may be repeated
    #[arg(long, value_name = "TAG", value_parser = tag)]
    addtag: Vec<String>,

    /// Allocation policy: contiguous, cling, normal, or the group's (inherit)
    #[arg(long, value_name = "POLICY", default_value = "inherit", value_parser = ["contiguous", "cling", "normal", "inherit"])]
    alloc: String,

    /// Whether to zero the first 4 KiB; the necessary parts of a snapshot are always zeroed
    #[arg(short = 'Z', long, value_name = "y|n", default_value = "y", action = ArgAction::Set, value_parser = super::yes_no)]
    zero: bool,

    /// Taken for LVM's sake: old signatures are not looked for
    #[arg(short = 'W', long, value_name = "y|n", hide = true, value_parser = super::yes_no)]
    wipesignatures: Option<bool>,

    /// Taken for LVM's sake: nothing is activated
    #[arg(short, long, value_name = "y|n", hide = true)]
    activate: Option<String>,

    /// The group, optionally with the name of the volume; for a snapshot its origin, VG/LV
    #[arg(value_name = "VG[/LV]")]
    target: String,

    /// Physical volumes to place it on [default: any of the group's]
    #[arg(value_name = "PV")]
    pvs: Vec<String>,
}

/// How large.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(super) struct Size {
    /// Size, in MiB or with a unit (b, s, k, m, g, t, p, e); rounded up to extents
    #[arg(short = 'L', long = "size", value_name = "SIZE", value_parser = sizes::size)]
    size: Option<Sectors>,

    /// Size in extents, or a share of something: COUNT, N%VG, N%FREE, N%PVS, N%ORIGIN
    #[arg(short = 'l', long = "extents", value_name = "COUNT", value_parser = sizes::extents)]
    extents: Option<Extents>,
}

/// A tag in LVM's syntax.
pub(super) fn tag(text: &str) -> std::result::Result<String, String> {
    let word = text.strip_prefix('@').unwrap_or(text);
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_+.-/=!:#&".contains(&byte);
    let valid = (1..=1024).contains(&word.len()) && word.bytes().all(allowed);
    if !valid || word.starts_with('-') {
        return Err(format!("`{text}` is not a tag: letters, digits and _ + . - / = ! : # &"));
    }
    Ok(word.to_owned())
}

/// The number of extents for a size; reports rounding up.
pub(super) fn to_extents(group: &VolumeGroup, size: Sectors) -> Result<u32> {
    let extents = group.extents(size).ok_or_else(|| Error::failed("The size is too large"))?;
    if group.sectors(extents) != size {
        let rounded = sizes::long(group.sectors(extents));
        output::tell(&format!("  Rounding up size to full physical extent {rounded}\n"))?;
    }
    Ok(extents)
}

/// The number of extents for a share of the group's.
pub(super) fn share_of_group(
    group: &VolumeGroup,
    percent: u32,
    of: Of,
    named: &[usize],
) -> Option<u32> {
    let free = group.free_map();
    let all = group.pvs.iter().map(|pv| u64::from(pv.pe_count)).sum();
    let extents = match of {
        Of::Group => all,
        Of::Free => group.free_extents(),
        Of::Named if named.is_empty() => all,
        Of::Named => named.iter().map(|pv| free.on(*pv)).sum(),
        Of::Origin | Of::Volume => return None,
    };
    Some(sizes::share(percent, of, extents))
}

/// The group policy for placing new extents.
pub(super) fn policy(allocation: Option<&Allocation>) -> Policy {
    match allocation {
        Some(Allocation::Contiguous) => Policy::Contiguous,
        Some(Allocation::Cling | Allocation::ClingByTags) => Policy::Cling,
        Some(Allocation::Normal | Allocation::Anywhere | Allocation::Other(_)) | None => {
            Policy::Normal
        }
    }
}

/// Rounds extents to whole rows of stripes: down if they are a share, else up.
pub(super) fn whole_rows(
    group: &VolumeGroup,
    extents: u32,
    stripes: u32,
    is_share: bool,
) -> Result<u32> {
    if extents.is_multiple_of(stripes) {
        return Ok(extents);
    }
    let rows = extents / stripes + u32::from(!is_share);
    let rounded =
        rows.checked_mul(stripes).ok_or_else(|| Error::failed("The size is too large"))?;
    let size = |extents| sizes::long(group.sectors(extents));
    let way = if is_share { "down" } else { "up" };
    output::tell(&format!(
        "  Rounding size {} ({extents} extents) {way} to stripe boundary size {} ({rounded} extents).\n",
        size(extents),
        size(rounded)
    ))?;
    Ok(rounded)
}

impl Lvcreate {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let (group, target) = split_name(&self.target)?;
        let named = self.name.as_deref().map(|name| match split_name(name)? {
            (of, Some(name)) if of == group => Ok(name),
            (name, None) => Ok(name),
            (_, Some(_)) => Err(Error::usage("-n names another group")),
        });
        let named = named.transpose()?;
        let (origin, name) = match (self.snapshot, target, named) {
            (true, Some(origin), name) => (Some(origin), name),
            (true, None, _) => return Err(Error::usage("a snapshot needs its origin, VG/LV")),
            (false, Some(_), Some(_)) => return Err(Error::usage("two names are given")),
            (false, target, name) => (None, target.or(name)),
        };
        let archives = Archives::new(self.changing.autobackup)?;
        with(&self.disks.devices, Access::Write, async |session| {
            let mut draft = session.draft(group).await?;
            let (name, zeroes) = self.make(session, &mut draft, name, origin)?;
            session.commit(draft, &zeroes, &archives).await?;
            output::tell(&format!("  Logical volume \"{name}\" created.\n"))
        })?;
        Ok(ExitCode::SUCCESS)
    }

    /// Adds the volume to the description; returns its name, and what must be zeroed.
    fn make(
        &self,
        session: &Session,
        draft: &mut Draft,
        name: Option<&str>,
        origin: Option<&str>,
    ) -> Result<(String, Vec<Zeroes>)> {
        let failed = |why: &dyn std::fmt::Display| Error::plain("Cannot make the volume", why);
        let only = draft.named(session, &self.pvs)?;
        let wish = self.wish(&draft.group, only, origin)?;
        let new = NewVolume {
            name: name.map(str::to_owned),
            wish,
            tags: self.addtag.clone(),
            writable: self.permission == "rw",
        };
        let made = draft.change(|group, author| match origin {
            None => group.create(&new, author),
            Some(origin) => group.create_snapshot(origin, self.chunksize, &new, author),
        });
        let name = made.map_err(|error| failed(&error))?;
        let allocation = match self.alloc.as_str() {
            "contiguous" => Some(Allocation::Contiguous),
            "cling" => Some(Allocation::Cling),
            "normal" => Some(Allocation::Normal),
            _ => None,
        };
        if let Some(lv) = draft.group.lv_mut(&name) {
            lv.allocation = allocation;
        }
        let of = &draft.group.name;
        let zeroes = match origin {
            Some(_) => {
                // An empty store: the first chunk, its header, has no magic number.
                let device = dm_name(of, &name, Some("cow"));
                vec![Zeroes { device, bytes: self.chunksize.bytes() }]
            }
            None if self.zero => vec![Zeroes { device: dm_name(of, &name, None), bytes: ZEROED }],
            None => Vec::new(),
        };
        Ok((name, zeroes))
    }

    fn wish(&self, group: &VolumeGroup, only: Vec<usize>, origin: Option<&str>) -> Result<Wish> {
        let (extents, is_share) = match (self.size.size, self.size.extents) {
            (Some(size), _) => (to_extents(group, size)?, false),
            (None, Some(Extents::Count(count))) => (count, false),
            (None, Some(Extents::Share(percent, of))) => {
                let of_origin = || match (of, origin) {
                    (Of::Origin, Some(origin)) => {
                        let lv = group.lv(origin).map_or(0, |lv| lv.extents());
                        Ok(sizes::share(percent, of, lv.into()))
                    }
                    _ => Err(Error::usage("that share is of nothing here")),
                };
                let share = share_of_group(group, percent, of, &only);
                (share.map_or_else(of_origin, Ok)?, true)
            }
            (None, None) => return Err(Error::usage("no size is given")),
        };
        let stripe_size = self.stripesize.unwrap_or(STRIPE);
        let fits = stripe_size.0.is_power_of_two() && stripe_size >= CHUNK;
        if self.stripes > 1 && (!fits || stripe_size > group.extent_size) {
            let most = sizes::long(group.extent_size);
            let size = sizes::long(stripe_size);
            return Err(Error::failed(format_args!(
                "A stripe size is a power of two from 4 KiB to the extent size of {most}, not {size}"
            )));
        }
        if self.stripes > 1 && self.stripesize.is_none() {
            output::tell(&format!("  Using default stripesize {}.\n", sizes::long(STRIPE)))?;
        }
        let extents = whole_rows(group, extents, self.stripes, is_share)?;
        let policy = match self.alloc.as_str() {
            "contiguous" => Policy::Contiguous,
            "cling" => Policy::Cling,
            "normal" => Policy::Normal,
            _ => policy(group.allocation.as_ref()),
        };
        Ok(Wish { extents, stripes: self.stripes, stripe_size, policy, only })
    }
}
