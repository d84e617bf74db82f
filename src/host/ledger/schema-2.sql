-- Never change a statement of this file, or a comment inside a statement: SQLite stores both, and a ledger whose stored
-- statements differ counts as damaged.

CREATE TABLE networks (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;

-- The last specification of each pool.
CREATE TABLE pools (
    name TEXT PRIMARY KEY,
    -- JSON.
    specification TEXT NOT NULL,
    -- Of the whole row, as in each table below: CRC-32.
    checksum INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- One row for an address of a network, whichever pool it comes from: the same address cannot be held twice.
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
    -- NULL while the address is held.
    released INTEGER CHECK (released >= 0),
    -- End of the reuse delay.
    reuse_after INTEGER CHECK (reuse_after >= 0),
    checksum INTEGER NOT NULL,
    PRIMARY KEY (network, address)
) STRICT, WITHOUT ROWID;

-- Records of an address that its claimant does not hold.
CREATE TABLE conflicts (
    network INTEGER NOT NULL REFERENCES networks (id),
    address BLOB NOT NULL CHECK (length(address) IN (4, 16)),
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    uid TEXT NOT NULL,
    interface TEXT NOT NULL,
    source TEXT NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (network, address, namespace, name, uid, interface)
) STRICT, WITHOUT ROWID;

-- Machines whose claim found a pool exhausted; served by creation time, then namespace and name.
CREATE TABLE waiters (
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    uid TEXT NOT NULL,
    created INTEGER NOT NULL CHECK (created >= 0),
    sticky INTEGER NOT NULL CHECK (sticky IN (0, 1)),
    -- A JSON list of pools, each with a family or null.
    requests TEXT NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (namespace, name, uid)
) STRICT, WITHOUT ROWID;

-- Machines that were looked for and not found.
CREATE TABLE missing (
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    uid TEXT NOT NULL,
    since INTEGER NOT NULL CHECK (since >= 0),
    checksum INTEGER NOT NULL,
    PRIMARY KEY (namespace, name, uid)
) STRICT, WITHOUT ROWID;

-- Number of rows of each table, and the sum of their checksums, which show whether a damaged page has lost a row. Each
-- transaction updates them once at its end. The tables are: 1 pools, 2 leases, 3 conflicts, 4 waiters, 5 missing.
CREATE TABLE totals (
    id INTEGER PRIMARY KEY,
    rows INTEGER NOT NULL,
    checksums INTEGER NOT NULL
) STRICT;
INSERT INTO totals VALUES (1, 0, 0), (2, 0, 0), (3, 0, 0), (4, 0, 0), (5, 0, 0);

-- Earlier holders of addresses.
CREATE TABLE history (
    number INTEGER PRIMARY KEY,
    network INTEGER NOT NULL,
    address BLOB NOT NULL,
    prefix INTEGER NOT NULL,
    pool TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    uid TEXT NOT NULL,
    interface TEXT NOT NULL,
    since INTEGER NOT NULL,
    released INTEGER NOT NULL
) STRICT;

-- Items that other processes must read again: a pool, a lease, a conflict or a machine. Triggers write these rows, so
-- that no writer can omit them.
CREATE TABLE changes (
    number INTEGER PRIMARY KEY,
    pool TEXT,
    network INTEGER,
    address BLOB,
    namespace TEXT,
    name TEXT,
    uid TEXT,
    interface TEXT
) STRICT;

CREATE TRIGGER pool_added AFTER INSERT ON pools BEGIN
    INSERT INTO changes (pool) VALUES (new.name);
END;
CREATE TRIGGER pool_removed AFTER DELETE ON pools BEGIN
    INSERT INTO changes (pool) VALUES (old.name);
END;
CREATE TRIGGER lease_added AFTER INSERT ON leases BEGIN
    INSERT INTO changes (network, address) VALUES (new.network, new.address);
END;
CREATE TRIGGER lease_changed AFTER UPDATE ON leases BEGIN
    INSERT INTO changes (network, address) VALUES (new.network, new.address);
END;
CREATE TRIGGER lease_released AFTER UPDATE ON leases WHEN old.released IS NULL AND new.released IS NOT NULL BEGIN
    INSERT INTO history (network, address, prefix, pool, namespace, name, uid, interface, since, released)
    VALUES (new.network, new.address, new.prefix, new.pool, new.namespace, new.name, new.uid, new.interface, new.since,
            new.released);
END;
CREATE TRIGGER lease_removed AFTER DELETE ON leases BEGIN
    INSERT INTO changes (network, address) VALUES (old.network, old.address);
END;
CREATE TRIGGER conflict_added AFTER INSERT ON conflicts BEGIN
    INSERT INTO changes (network, address, namespace, name, uid, interface)
    VALUES (new.network, new.address, new.namespace, new.name, new.uid, new.interface);
END;
CREATE TRIGGER conflict_removed AFTER DELETE ON conflicts BEGIN
    INSERT INTO changes (network, address, namespace, name, uid, interface)
    VALUES (old.network, old.address, old.namespace, old.name, old.uid, old.interface);
END;
CREATE TRIGGER waiter_added AFTER INSERT ON waiters BEGIN
    INSERT INTO changes (namespace, name, uid) VALUES (new.namespace, new.name, new.uid);
END;
CREATE TRIGGER waiter_removed AFTER DELETE ON waiters BEGIN
    INSERT INTO changes (namespace, name, uid) VALUES (old.namespace, old.name, old.uid);
END;
CREATE TRIGGER missing_added AFTER INSERT ON missing BEGIN
    INSERT INTO changes (namespace, name, uid) VALUES (new.namespace, new.name, new.uid);
END;
CREATE TRIGGER missing_removed AFTER DELETE ON missing BEGIN
    INSERT INTO changes (namespace, name, uid) VALUES (old.namespace, old.name, old.uid);
END;
