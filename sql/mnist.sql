-- MNIST: images of 28 x 28 bytes and their digits, one table for training and one for testing.
CREATE TABLE "{name}_TRAIN" (
    ID BIGINT PRIMARY KEY,
    IMAGE VARBINARY,
    LABEL INT
) WITH "CACHE_NAME={name}_TRAIN,VALUE_TYPE={name}_TRAIN{options}";

CREATE TABLE "{name}_TEST" (
    ID BIGINT PRIMARY KEY,
    IMAGE VARBINARY,
    LABEL INT
) WITH "CACHE_NAME={name}_TEST,VALUE_TYPE={name}_TEST{options}";
