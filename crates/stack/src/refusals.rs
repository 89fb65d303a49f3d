//! What is found on devices, and not used.

/// What is found on devices and may be refused as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// A volume group that another host may be writing to.
    Group,
    /// A pool that cannot be imported.
    Pool,
    /// A volume of one of these that cannot be made.
    Volume,
}

/// Something that is not used, in its holder's words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// What it is.
    pub what: Refused,
    /// Its name; that of a volume begins with its group or pool: `vg/lv`.
    pub name: String,
    /// The reason.
    pub why: String,
    /// The remedy.
    pub hint: Option<String>,
    /// The names of the devices it is made of.
    pub below: Vec<String>,
}
