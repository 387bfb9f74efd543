-- The whole copies of the partitions of a cache; a copy that is still being filled is MOVING.
SELECT PARTITION_ID, NODE_ID FROM SYS.PARTITION_STATES WHERE STATE = 'OWNING' AND CACHE_GROUP_ID =
    (SELECT CACHE_GROUP_ID FROM SYS.CACHES WHERE CACHE_NAME = ?)
