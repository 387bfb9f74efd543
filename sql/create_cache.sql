-- A cache with a chosen number of partitions, which only templates give and only SQL can combine
-- with a name and backups. No entry has this value type, so the table stays empty, and the cache
-- takes keys and values of every type.
CREATE TABLE "{table}" ("KEY" VARCHAR PRIMARY KEY, "VALUE" VARBINARY)
WITH "CACHE_NAME={cache},VALUE_TYPE=ignitetf.Any.{cache}{options}"
