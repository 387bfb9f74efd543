-- Pascal VOC: images with their main object, and all objects. An object is stored with its image
-- (same partition), so that a join of the two stays on one node.
CREATE TABLE "{name}_IMAGES" (
    ID BIGINT PRIMARY KEY,
    IMAGE VARBINARY,
    NAME VARCHAR,
    WIDTH INT,
    HEIGHT INT,
    LABEL INT,
    XMIN REAL,
    YMIN REAL,
    XMAX REAL,
    YMAX REAL,
    BOXES OTHER,
    BOX_LABELS OTHER
) WITH "CACHE_NAME={name}_IMAGES,VALUE_TYPE={name}_IMAGES{options}";

CREATE TABLE "{name}_ANNOTATIONS" (
    IMAGE_ID BIGINT,
    N INT,
    NAME VARCHAR,
    CLASS VARCHAR,
    LABEL INT,
    XMIN REAL,
    YMIN REAL,
    XMAX REAL,
    YMAX REAL,
    DIFFICULT INT,
    TRUNCATED INT,
    PRIMARY KEY (IMAGE_ID, N)
) WITH "CACHE_NAME={name}_ANNOTATIONS,VALUE_TYPE={name}_ANNOTATIONS,KEY_TYPE={name}_ANNOTATIONS_KEY,AFFINITY_KEY=IMAGE_ID{options}";
