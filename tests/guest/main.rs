//! Whole runs of the guest's program: a directory in, files and words out.

mod boots;
mod hostile;
mod machine;
mod usage;
