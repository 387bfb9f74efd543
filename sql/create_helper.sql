-- A table that stays empty; altering and dropping it discards cached statement plans.
CREATE TABLE IF NOT EXISTS "{name}" ("KEY" VARCHAR PRIMARY KEY, "VALUE" VARBINARY)
WITH "CACHE_NAME={name},TEMPLATE=REPLICATED,VALUE_TYPE=ignitetf.Any.{name}"
