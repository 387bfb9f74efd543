-- A table with its own cache; rows can be written through the cache or through SQL.
CREATE TABLE "{table}" ({columns}, PRIMARY KEY ({key}))
WITH "CACHE_NAME={cache}{options}"
