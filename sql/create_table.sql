-- A table in a cache of its own; rows may be written through the cache as well as through SQL.
CREATE TABLE "{table}" ({columns}, PRIMARY KEY ({key}))
WITH "CACHE_NAME={cache}{options}"
