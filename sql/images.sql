-- A folder of images: encoded bytes, number and name of the class, path inside the folder.
CREATE TABLE "{name}" (
    ID BIGINT PRIMARY KEY,
    IMAGE VARBINARY,
    LABEL INT,
    LABEL_NAME VARCHAR,
    PATH VARCHAR
) WITH "CACHE_NAME={name},VALUE_TYPE={name}{options}";
