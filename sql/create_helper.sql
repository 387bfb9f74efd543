-- A table that stays empty; altering and dropping it throws away the plans of statements.
CREATE TABLE IF NOT EXISTS "{name}" ("KEY" VARCHAR PRIMARY KEY, "VALUE" VARBINARY)
WITH "CACHE_NAME={name},TEMPLATE=REPLICATED,VALUE_TYPE=ignitetf.Any.{name}"
