CREATE TABLE networks (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;

-- One row for an address of a network, whichever pool it comes from: the same one cannot be held twice.
CREATE TABLE leases (
    network INTEGER NOT NULL REFERENCES networks (id),
    -- In network order, so that bytes sort as addresses do.
    address BLOB NOT NULL CHECK (length(address) IN (4, 16)),
    prefix INTEGER NOT NULL CHECK (prefix BETWEEN 0 AND 8 * length(address)),
    pool TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    uid TEXT NOT NULL,
    interface TEXT NOT NULL,
    -- Milliseconds since 1970, as all times here.
    since INTEGER NOT NULL CHECK (since >= 0),
    -- NULL while it is held.
    released INTEGER CHECK (released >= 0),
    -- Until then it is not given to somebody else.
    reuse_after INTEGER CHECK (reuse_after >= 0),
    PRIMARY KEY (network, address)
) STRICT, WITHOUT ROWID;

-- Who has a record of an address that is not its own by the ledger.
CREATE TABLE conflicts (
    network INTEGER NOT NULL REFERENCES networks (id),
    address BLOB NOT NULL CHECK (length(address) IN (4, 16)),
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    uid TEXT NOT NULL,
    interface TEXT NOT NULL,
    source TEXT NOT NULL,
    PRIMARY KEY (network, address, namespace, name, uid, interface)
) STRICT, WITHOUT ROWID;

-- Who asked when a pool was exhausted; served by creation time, then namespace and name.
CREATE TABLE waiters (
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    uid TEXT NOT NULL,
    created INTEGER NOT NULL CHECK (created >= 0),
    sticky INTEGER NOT NULL CHECK (sticky IN (0, 1)),
    -- The names of the pools, as a JSON list.
    pools TEXT NOT NULL,
    PRIMARY KEY (namespace, name, uid)
) STRICT, WITHOUT ROWID;

-- Machines that were looked for and not found.
CREATE TABLE missing (
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    uid TEXT NOT NULL,
    since INTEGER NOT NULL CHECK (since >= 0),
    PRIMARY KEY (namespace, name, uid)
) STRICT, WITHOUT ROWID;

-- What another process has to look at again: an address or a machine. The store writes it, so that no writer forgets.
CREATE TABLE changes (
    number INTEGER PRIMARY KEY,
    network INTEGER,
    address BLOB,
    namespace TEXT,
    name TEXT,
    uid TEXT
) STRICT;

CREATE TRIGGER lease_is_new AFTER INSERT ON leases BEGIN
    INSERT INTO changes (network, address) VALUES (new.network, new.address);
END;
CREATE TRIGGER lease_has_changed AFTER UPDATE ON leases BEGIN
    INSERT INTO changes (network, address) VALUES (new.network, new.address);
END;
CREATE TRIGGER lease_is_gone AFTER DELETE ON leases BEGIN
    INSERT INTO changes (network, address) VALUES (old.network, old.address);
END;
CREATE TRIGGER conflict_is_new AFTER INSERT ON conflicts BEGIN
    INSERT INTO changes (network, address) VALUES (new.network, new.address);
END;
CREATE TRIGGER conflict_is_gone AFTER DELETE ON conflicts BEGIN
    INSERT INTO changes (network, address) VALUES (old.network, old.address);
END;
CREATE TRIGGER waiter_is_new AFTER INSERT ON waiters BEGIN
    INSERT INTO changes (namespace, name, uid) VALUES (new.namespace, new.name, new.uid);
END;
CREATE TRIGGER waiter_is_gone AFTER DELETE ON waiters BEGIN
    INSERT INTO changes (namespace, name, uid) VALUES (old.namespace, old.name, old.uid);
END;
CREATE TRIGGER missing_is_new AFTER INSERT ON missing BEGIN
    INSERT INTO changes (namespace, name, uid) VALUES (new.namespace, new.name, new.uid);
END;
CREATE TRIGGER missing_is_gone AFTER DELETE ON missing BEGIN
    INSERT INTO changes (namespace, name, uid) VALUES (old.namespace, old.name, old.uid);
END;
