//! Names of annotations and members that contain records.

/// Start of the key of the annotation that records addresses; the name of the interface follows.
pub const ANNOTATION_PREFIX: &str = "kubevirt.cluster.x-k8s.io/allocated-ip-";

/// Annotation in which HyperShift writes the NodePool of a machine, as `namespace/name`. Cluster API copies the
/// annotation from the MachineDeployment to the KubevirtMachine.
pub const NODE_POOL_ANNOTATION: &str = "hypershift.openshift.io/nodePool";

/// Start of the key of our own annotation with the network of a record; the name of the interface follows. The formats
/// of the enhancement have no field for the network, and this program does not change these formats.
pub const NETWORK_PREFIX: &str = "ipam.glowplug.dev/network-";

/// Name of the status map in the status of a KubevirtMachine.
pub const STATUS_FIELD: &str = "allocatedBootstrapAddresses";

/// API version of KubevirtMachines, the only version of Cluster API's provider for KubeVirt.
pub const API_VERSION: &str = "infrastructure.cluster.x-k8s.io/v1alpha1";
