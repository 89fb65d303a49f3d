//! Copying sectors between devices, in pieces.

use ashlar_block::{Bio, BioResult, Gateway, Sector, Sectors};

/// More sectors than this are copied in pieces of this size.
pub(crate) const PIECE: Sectors = Sectors(2048);

/// Copies sectors from one device to another.
pub(crate) async fn copy(
    from: &Gateway,
    at: Sector,
    to: &Gateway,
    target: Sector,
    len: Sectors,
) -> BioResult {
    for (done, piece) in pieces(len) {
        let mut data = from.read(at + done, piece).await?;
        to.submit(Bio::write_from(target + done, &mut data)).await?;
    }
    Ok(())
}

/// The starts and lengths of the pieces in which `len` sectors are copied.
pub(crate) fn pieces(len: Sectors) -> impl Iterator<Item = (Sectors, Sectors)> {
    let starts = (0..len.0).step_by(PIECE.0 as usize);
    starts.map(move |at| (Sectors(at), PIECE.min(Sectors(len.0 - at))))
}
