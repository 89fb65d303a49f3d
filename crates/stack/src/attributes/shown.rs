//! What the attributes of a stack are shown of: its disks and its arrays.

use std::sync::Arc;

use ashlar_md::MemberStatus;

use super::{Source, Tree, mdstat};
use crate::arrays::{Arrays, Waiting};
use crate::assemble::Plain;
use crate::disks::Disks;
use crate::view::ArrayShape;

/// See the module text.
pub(crate) struct Shown {
    pub(crate) disks: Arc<Disks>,
    pub(crate) plain: Vec<Plain>,
    pub(crate) arrays: Arc<Arrays>,
}

impl Source for Shown {
    /// The names of the disks, the shapes of the arrays that run, and those that wait.
    type Shape = (Vec<String>, Vec<ArrayShape>, Vec<Waiting>);

    fn shape(&self) -> Self::Shape {
        let disks = self.disks.all().into_iter().map(|held| held.name);
        let running = self.arrays.running();
        let arrays = running.iter().map(|volume| volume.view.shape());
        (disks.collect(), arrays.collect(), self.arrays.waiting())
    }

    fn build(&self, (_, shapes, waiting): &Self::Shape) -> Tree {
        let mut tree = Tree::default();
        // There may be more by now; that is another shape.
        for (volume, shape) in self.arrays.running().iter().zip(shapes) {
            let name = volume.name.device();
            let gateway = volume.bytes.gateway();
            tree.add_volume(&format!("dev/{name}"), &volume.bytes);
            if let Some(alias) = &volume.name.alias {
                tree.add_symlink(&format!("dev/md/{alias}"), &format!("../{name}"));
            }
            tree.add_device(&name, gateway);
            let number = format!("9:{}", volume.name.number);
            tree.add_text(&format!("sys/block/{name}/dev"), move || number.clone());
            tree.add_array(&name, &volume.view, shape);
        }
        for array in waiting {
            tree.add_waiting(array, &self.disks);
        }
        for Plain { name, bytes } in &self.plain {
            tree.add_volume(&format!("dev/{name}"), bytes);
        }
        for held in self.disks.all() {
            tree.add_device(&held.name, &held.gateway);
        }
        let (arrays, disks) = (Arc::clone(&self.arrays), Arc::clone(&self.disks));
        tree.add_text("proc/mdstat", move || {
            let running = arrays.running();
            let running = running.iter().map(|volume| {
                let view = &volume.view;
                (view.snapshot(), |member: &MemberStatus| view.member_name(member))
            });
            mdstat::mdstat(running, &arrays.waiting(), |path| disks.name(path))
        });
        tree
    }
}
