//! Reads objects from the API server for the commands of the plugin, page by page. Shows the progress of long lists,
//! and notes the rights that the user lacks.

use std::cell::{Cell, RefCell};
use std::io::Write as _;

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ApiResource, ListParams};
use kube::{Client, Error};

use crate::cluster::client::serves;
use crate::cluster::key::Key;
use crate::cluster::object::Object;
use crate::cluster::request::{Reason, find};
use crate::kinds::pool::GROUP;

/// Number of objects in one page of a list.
const PAGE: u32 = 500;
/// Maximum number of objects of one kind that are read.
const MOST: usize = 1_000_000;
/// ClusterRole of the manifests with all rights that the commands need for reading, except the right to read Secrets.
const PLUGIN: &str = "glowplug-plugin";
/// Maximum number of simultaneous requests for single objects.
const REQUESTS: usize = 16;

/// Reads from the API server, and notes the rights that the user lacks.
pub struct Reader {
    client: Client,
    /// The value of the controller's option `--namespace`. StaticIPPools, NodePools, Services and Clusters are read
    /// only from this namespace. `None`: from all namespaces.
    scope: Option<String>,
    /// Whether the progress of long lists is shown on standard error.
    has_progress: bool,
    lacking: RefCell<Vec<Lacking>>,
    /// Whether the user lacks a right that every answer needs: see [`Reader::required`].
    has_no_answer: Cell<bool>,
}

/// The cluster-scoped kinds. A right to one of these kinds names no namespace.
const OF_CLUSTER: [&str; 4] = ["globalstaticippools", "macpools", "namespaces", "staticipleases"];

/// A right that the user lacks.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Lacking {
    /// The right in the words of a role. Example: `list nodepools.hypershift.openshift.io in every namespace`.
    pub right: String,
    /// What the answer lacks without the right. `None`: without the right there is no answer, or nothing is written.
    pub without: Option<&'static str>,
}

/// How completely the objects of a kind were read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Listed {
    /// Every object was read. If the kind belongs to another program, and the API server does not serve it, there is no
    /// object.
    Whole,
    /// The user has no right to list the kind.
    Denied,
}

// === impl Reader ===

impl Reader {
    /// Creates a reader. `scope` is the option `--namespace` of the controller. `has_progress` is `true` if standard
    /// error is a terminal.
    #[must_use]
    pub fn new(client: Client, scope: Option<String>, has_progress: bool) -> Self {
        Self { client, scope, has_progress, lacking: RefCell::default(), has_no_answer: Cell::default() }
    }

    /// The namespace to which the controller is limited. `None`: the controller works in every namespace.
    #[must_use]
    pub fn scope(&self) -> Option<&str> {
        self.scope.as_deref()
    }

    /// Client with which the reader sends requests.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The namespace for a StaticIPPool in a file, if the pool names no namespace.
    pub(super) fn default_namespace(&self) -> &str {
        self.scope().unwrap_or_else(|| self.client.default_namespace())
    }

    /// The rights that the user lacks.
    #[must_use]
    pub fn lacking(&self) -> Vec<Lacking> {
        self.lacking.borrow().clone()
    }

    /// Notes that the user lacks a right. `namespace` is `None` for a right in every namespace.
    pub fn note_lacking(&self, verb: &str, kind: &ApiResource, namespace: Option<&str>) {
        let right = Lacking { right: right(verb, kind, namespace), without: without(verb, &kind.plural) };
        let mut lacking = self.lacking.borrow_mut();
        if !lacking.contains(&right) {
            lacking.push(right);
        }
    }

    /// Passes all objects of a kind to `take`, page by page. `namespace` is `None` for every namespace.
    ///
    /// # Errors
    ///
    /// A request failed, the API server does not serve a kind of glowplug, or there are more than a million objects.
    pub async fn each(
        &self,
        kind: &ApiResource,
        namespace: Option<&str>,
        params: ListParams,
        mut take: impl FnMut(Object),
    ) -> anyhow::Result<Listed> {
        let api: Api<Object> = match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, kind),
            None => Api::all_with(self.client.clone(), kind),
        };
        let (mut count, mut params) = (0, params.limit(PAGE));
        let listed = loop {
            let page = match api.list(&params).await {
                Ok(page) => page,
                Err(error) if count == 0 && self.is_unserved(kind, &error).await => {
                    let ApiResource { plural, group, .. } = kind;
                    anyhow::ensure!(
                        group != GROUP,
                        "the API server has no {plural}.{group}: apply the definitions of glowplug"
                    );
                    break Listed::Whole;
                }
                Err(error) if is_denied(&error) => {
                    self.note_lacking("list", kind, namespace);
                    break Listed::Denied;
                }
                Err(error) => anyhow::bail!("listing {}: {}", kind.plural, Reason(&error)),
            };
            count += page.items.len();
            anyhow::ensure!(count <= MOST, "listing {}: too many objects, expected at most {MOST}", kind.plural);
            page.items.into_iter().for_each(&mut take);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => break Listed::Whole,
            }
            self.show(&format!("reading {}: {count}", kind.plural));
        };
        if count > PAGE as usize {
            self.show("");
        }
        Ok(listed)
    }

    /// Returns all objects of a kind, or an empty list if the user has no right to list them. `namespace` is `None` for
    /// every namespace.
    ///
    /// # Errors
    ///
    /// The same errors as [`Reader::each`].
    pub async fn list(&self, kind: &ApiResource, namespace: Option<&str>) -> anyhow::Result<Vec<Object>> {
        let mut objects = Vec::new();
        self.each(kind, namespace, ListParams::default(), |object| objects.push(object)).await?;
        Ok(objects)
    }

    /// Returns all objects of a kind that every answer needs. `namespace` is `None` for every namespace.
    ///
    /// If the user has no right to list the kind, the result is empty, and `Reader::check` fails. A command calls
    /// `check` after its other requests, so that the message has every right that the user lacks.
    ///
    /// # Errors
    ///
    /// The same errors as [`Reader::each`].
    pub async fn required(&self, kind: &ApiResource, namespace: Option<&str>) -> anyhow::Result<Vec<Object>> {
        let mut objects = Vec::new();
        if self.each(kind, namespace, ListParams::default(), |object| objects.push(object)).await? == Listed::Denied {
            self.has_no_answer.set(true);
        }
        Ok(objects)
    }

    /// Whether the user lacks a right that every answer needs.
    pub(super) fn has_no_answer(&self) -> bool {
        self.has_no_answer.get()
    }

    /// Fails if no answer is possible.
    ///
    /// # Errors
    ///
    /// The user has no right to list a kind of [`Reader::required`]. The message has every missing right.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let lacking = self.lacking();
        let pronoun = if lacking.len() == 1 { "it" } else { "them" };
        // The role has no right to read Secrets.
        let is_of_role = lacking.iter().all(|it| !it.right.starts_with("get secrets"));
        let role = if is_of_role { format!("; the ClusterRole {PLUGIN} has {pronoun}") } else { String::new() };
        anyhow::ensure!(!self.has_no_answer(), "{}{role}", rights(&lacking));
        Ok(())
    }

    /// Whether a request for objects of a kind failed because the API server does not serve the kind. The answer may
    /// be that a right is missing. So this method asks for the served kinds, which needs no further right.
    async fn is_unserved(&self, kind: &ApiResource, error: &Error) -> bool {
        let may_be = matches!(error, Error::Api(status) if matches!(status.code, 403 | 404));
        may_be && matches!(serves(&self.client, kind).await, Ok(false))
    }

    /// Returns one object. `None`: the object does not exist, the API server does not serve its kind, or the user has
    /// no right to read the object.
    ///
    /// # Errors
    ///
    /// The request failed.
    pub async fn get(&self, kind: &ApiResource, key: &Key) -> anyhow::Result<Option<Object>> {
        let api: Api<Object> = Api::namespaced_with(self.client.clone(), &key.namespace, kind);
        match find(&api, &key.name).await {
            Err(error) if self.is_unserved(kind, &error).await => Ok(None),
            Err(error) if is_denied(&error) => {
                self.note_lacking("get", kind, Some(&key.namespace));
                Ok(None)
            }
            answer => answer
                .map_err(|error| anyhow::anyhow!("{}", Reason(&error)))
                .with_context(|| format!("reading {} {key}", kind.kind)),
        }
    }

    /// Whether a namespace exists. If the user has no right to read it, it counts as existing, and the missing right is
    /// noted.
    ///
    /// # Errors
    ///
    /// The request failed.
    pub async fn has_namespace(&self, name: &str) -> anyhow::Result<bool> {
        let kind = ApiResource::erase::<Namespace>(&());
        match find(&Api::<Object>::all_with(self.client.clone(), &kind), name).await {
            Err(error) if is_denied(&error) => {
                self.note_lacking("get", &kind, Some(name));
                Ok(true)
            }
            answer => answer
                .map(|namespace| namespace.is_some())
                .map_err(|error| anyhow::anyhow!("reading Namespace {name}: {}", Reason(&error))),
        }
    }

    /// Passes the objects with these names to `take`. Leaves out each object that does not exist or that the user has
    /// no right to read.
    ///
    /// # Errors
    ///
    /// A request failed.
    pub(super) async fn get_each(
        &self,
        kind: &ApiResource,
        keys: &[Key],
        mut take: impl FnMut(Object),
    ) -> anyhow::Result<Listed> {
        let before = self.lacking().len();
        let requests = stream::iter(keys).map(|key| self.get(kind, key));
        let mut answers = requests.buffer_unordered(REQUESTS);
        while let Some(object) = answers.try_next().await? {
            object.into_iter().for_each(&mut take);
        }
        Ok(if self.lacking().len() == before { Listed::Whole } else { Listed::Denied })
    }

    /// Shows the progress in the last line of the terminal. Replaces the progress that was shown before.
    fn show(&self, progress: &str) {
        if self.has_progress {
            // If the progress cannot be shown, the result is the same.
            let _ = write!(std::io::stderr(), "\r\u{1b}[K{progress}");
        }
    }
}

/// Whether the API server answers that the user lacks a right.
pub(super) fn is_denied(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == 403)
}

/// Returns the message about a pool in a file, if the namespace of the pool does not exist.
pub(super) fn absent_namespace(name: &str) -> String {
    format!("metadata.namespace: {name:?} does not exist, expected a namespace of the cluster")
}

/// Returns the missing rights as text for a message.
pub(super) fn rights(lacking: &[Lacking]) -> String {
    let rights: Vec<&str> = lacking.iter().map(|lacking| &*lacking.right).collect();
    let title = if rights.len() == 1 { "missing right" } else { "missing rights" };
    format!("{title}: {}", rights.join("; "))
}

/// Returns a right in the words of a role.
fn right(verb: &str, kind: &ApiResource, namespace: Option<&str>) -> String {
    let group = if kind.group.is_empty() { String::new() } else { format!(".{}", kind.group) };
    let scope = match namespace {
        _ if OF_CLUSTER.contains(&&*kind.plural) => String::new(),
        Some(namespace) => format!(" in namespace {namespace}"),
        None => " in every namespace".to_owned(),
    };
    format!("{verb} {}{group}{scope}", kind.plural)
}

/// Returns what the answer lacks if the user does not have this right. `None`: the command then gives no answer, or
/// writes nothing.
fn without(verb: &str, plural: &str) -> Option<&'static str> {
    Some(match (verb, plural) {
        ("get", "namespaces") => "whether the namespace exists is not checked",
        (_, "namespaces") => "the machines that pools select by the labels of Namespaces are not shown",
        (_, "nodepools") => "the machines that pools select by NodePools are not shown",
        ("list" | "get", "virtualmachines" | "kubevirtmachines") => "machines are not shown",
        (_, "virtualmachineinstances") => "the reports of guests are not shown",
        (_, "services" | "clusters") => "the addresses of these objects are not reserved",
        (_, "ipaddressclaims" | "ipaddresses" | "ipamclaims" | "network-attachment-definitions") => {
            "claims are not shown"
        }
        (_, "secrets") => "network data is not compared",
        (_, "events") => "the reasons in events are not shown",
        (_, "leases") => "the replica that leads is not shown",
        ("list", "macpools") => "MACPools are not shown",
        ("list", "staticipleases") => "machines that wait are not shown",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Secret;

    use super::*;
    use crate::kinds::pool::{GlobalStaticIPPool, StaticIPPool};

    #[test]
    fn the_text_of_a_right_names_a_namespace_only_if_its_kind_has_namespaces() {
        let of_pools = ApiResource::erase::<StaticIPPool>(&());
        let rights = [
            right("list", &of_pools, None),
            right("list", &of_pools, Some("n")),
            right("list", &ApiResource::erase::<GlobalStaticIPPool>(&()), None),
            right("get", &ApiResource::erase::<Namespace>(&()), Some("n")),
            right("get", &ApiResource::erase::<Secret>(&()), Some("n")),
        ];
        let expected = [
            "list staticippools.ipam.glowplug.dev in every namespace",
            "list staticippools.ipam.glowplug.dev in namespace n",
            "list globalstaticippools.ipam.glowplug.dev",
            "get namespaces",
            "get secrets in namespace n",
        ];
        assert_eq!(rights, expected);
    }
}
