-- Pascal VOC: images, and the boxes in them. A box is stored beside its image (same partition),
-- so that a join of the two stays on one node.
CREATE TABLE "{name}_IMAGES" (
    ID BIGINT PRIMARY KEY,
    IMAGE VARBINARY,
    FILE_NAME VARCHAR,
    WIDTH INT,
    HEIGHT INT,
    DEPTH INT
) WITH "CACHE_NAME={name}_IMAGES,VALUE_TYPE={name}_IMAGES{options}";

CREATE TABLE "{name}_ANNOTATIONS" (
    IMAGE_ID BIGINT,
    N INT,
    LABEL VARCHAR,
    XMIN INT,
    YMIN INT,
    XMAX INT,
    YMAX INT,
    TRUNCATED BOOLEAN,
    DIFFICULT BOOLEAN,
    PRIMARY KEY (IMAGE_ID, N)
) WITH "CACHE_NAME={name}_ANNOTATIONS,VALUE_TYPE={name}_ANNOTATIONS,KEY_TYPE={name}_ANNOTATIONS_KEY,AFFINITY_KEY=IMAGE_ID{options}";
