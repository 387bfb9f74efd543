-- A folder of images: the encoded bytes, the number of the class, the path inside the folder.
CREATE TABLE "{name}" (
    ID BIGINT PRIMARY KEY,
    IMAGE VARBINARY,
    LABEL INT,
    NAME VARCHAR
) WITH "CACHE_NAME={name},VALUE_TYPE={name}{options}";
