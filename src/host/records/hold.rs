//! The addresses that an object records for an interface, and where the record is.

use ipnetwork::IpNetwork;

use super::names::{ANNOTATION_PREFIX, STATUS_FIELD};
use crate::diagnostic::FieldPath;
use crate::host::may_record::Source;
use crate::network::InterfaceName;

/// The addresses that one object records for one interface.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) interface: InterfaceName,
    /// The addresses, sorted and without repeats. An address recorded without a prefix length has the full length (/32,
    /// /128).
    pub(super) addresses: Vec<IpNetwork>,
    /// Network that the record names, spelled as in pools.
    pub(super) network: Option<String>,
    pub(super) spot: Spot,
}

/// Where a record was read. Most records need no message, so the position becomes a string only on demand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    /// Index of the list among the lists that were read.
    pub(super) source: usize,
    /// Index of the object in the list. `None` if the input is a single object.
    pub(super) item: Option<usize>,
    pub(super) member: Member,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Member {
    Annotation,
    TemplateAnnotation,
    Status,
}

// === impl Hold ===

impl Hold {
    pub(super) fn path(&self) -> String {
        self.spot.path(Some(self.interface.as_str()))
    }

    pub(super) fn kind(&self) -> Source {
        match self.spot.member {
            Member::Annotation | Member::TemplateAnnotation => Source::Annotation,
            Member::Status => Source::StatusMap,
        }
    }

    pub(super) fn push_path_onto(&self, text: &mut String) {
        self.spot.push_path_onto(Some(self.interface.as_str()), text);
    }
}

// === impl Spot ===

impl Spot {
    /// The path of the record of an interface. `None` gives the path of the member that has all records.
    pub(super) fn path(self, interface: Option<&str>) -> String {
        let mut path = String::new();
        self.push_path_onto(interface, &mut path);
        path
    }

    /// The path of the annotation with this key, in the same metadata as the annotation with the record.
    pub(super) fn annotation(self, key: &str) -> String {
        let mut path = String::new();
        self.push_member_onto(["", key].map(Some), &mut path);
        path
    }

    fn push_path_onto(self, interface: Option<&str>, path: &mut String) {
        let prefix = if matches!(self.member, Member::Status) { "" } else { ANNOTATION_PREFIX };
        self.push_member_onto([Some(prefix), interface], path);
    }

    fn push_member_onto(self, name: [Option<&str>; 2], path: &mut String) {
        let document = FieldPath::Document;
        let items = document.field("items");
        let object = self.item.map_or(document, |item| items.index(item));
        let (spec, status) = (object.field("spec"), object.field("status"));
        let template = spec.field("template");
        let metadata = match self.member {
            Member::TemplateAnnotation => template.field("metadata"),
            _ => object.field("metadata"),
        };
        let records = match self.member {
            Member::Status => status.field(STATUS_FIELD),
            _ => metadata.field("annotations"),
        };
        match name {
            [Some(prefix), Some(name)] => records.field(&[prefix, name].concat()).push_onto(path),
            _ => records.push_onto(path),
        }
    }
}
