//! stub
#![allow(missing_docs)]
use super::system::System;
use crate::drive::*;
use slog::Logger;
use std::fmt;
use std::path::*;
use std::time::Duration;
pub struct Search<'a> {
    pub root: &'a Path,
    pub system: &'a dyn System,
    pub wait: Duration,
    pub machine_known: bool,
    pub log: &'a Logger,
}
pub struct Found {
    pub device: PathBuf,
    pub volume: Volume,
    pub drive: Option<ConfigDrive>,
    pub waited: Duration,
    pub reason: String,
}
impl Found {
    pub fn has_kubevirts_shape(&self) -> bool {
        true
    }
}
pub struct Named {
    pub volume: Option<Volume>,
    pub drive: ConfigDrive,
}
impl Named {
    pub fn has_kubevirts_shape(&self) -> bool {
        true
    }
}
#[derive(Debug)]
pub enum SearchError {
    NoConfigDrive { path: PathBuf },
    Read(ReadError),
}
impl fmt::Display for SearchError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
impl std::error::Error for SearchError {}
impl Search<'_> {
    pub fn run(&self) -> Result<Option<Found>, SearchError> {
        Ok(None)
    }
}
pub fn read_path(p: &Path) -> Result<Named, SearchError> {
    if p.is_dir() {
        let d = directory::Directory::open(p).map_err(|_| SearchError::NoConfigDrive { path: p.into() })?;
        let c = ConfigDrive::read_from(&d).map_err(SearchError::Read)?;
        return c.map(|drive| Named { volume: None, drive }).ok_or(SearchError::NoConfigDrive { path: p.into() });
    }
    let f = std::fs::File::open(p).unwrap();
    let v = Volume::probe(&f).unwrap().ok_or(SearchError::NoConfigDrive { path: p.into() })?;
    let drive = ConfigDrive::read_from(&*v.open(&f).unwrap()).unwrap().unwrap();
    Ok(Named { volume: Some(v), drive })
}
