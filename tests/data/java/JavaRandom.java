import java.math.BigDecimal;
import java.math.BigInteger;
import java.net.URI;
import java.sql.Time;
import java.sql.Timestamp;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.OffsetDateTime;
import java.time.ZoneId;
import java.time.ZoneOffset;
import java.time.ZonedDateTime;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.Date;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.UUID;
import java.util.Vector;
import java.util.function.Function;
import java.util.function.IntFunction;
import org.apache.ignite.Ignition;
import org.apache.ignite.binary.BinaryBasicIdMapper;
import org.apache.ignite.client.IgniteClient;

/**
 * Writes random objects of every kind, and prints what they are: JavaRandom ADDRESS PREFIX ROWS SEED.
 *
 * A line is a JSON object: a cache, a key and a value. Numbers of float and double are their bits. A last line
 * has the ids that Ignite gives to field names.
 */
public class JavaRandom {
    static Random random;

    public static void main(String[] args) throws Exception {
        int rows = Integer.parseInt(args[2]);
        random = new Random(Long.parseLong(args[3]));
        try (IgniteClient client = Ignition.startClient(Connection.to(args[0]))) {
            write(client, args[1] + "_whole", rows, k -> (long) k, k -> new Kinds(0));
            write(client, args[1] + "_nulls", rows, k -> (long) k, k -> new Kinds(4));
            write(client, args[1] + "_keys", rows, k -> new Pair(k, null), k -> new Few(k));
            write(client, args[1] + "_bignumbers", rows, k -> big().add(BigInteger.valueOf(k)), k -> date());
            write(client, args[1] + "_lists", rows, k -> "k" + k, k -> List.of(k, k + 1));
            write(client, args[1] + "_foreign", rows, k -> (long) k, k -> new Foreign(k));
            write(client, args[1] + "_times", rows, k -> (long) k, k -> new Far(k));
        }
        System.out.println("{\"ids\": " + ids() + "}");
    }

    private static <K, V> void write(
        IgniteClient client, String name, int rows, IntFunction<K> key, IntFunction<V> value) {
        Map<K, V> entries = new LinkedHashMap<>();
        for (int k = 0; k < rows; k++)
            entries.put(key.apply(k), value.apply(k));
        client.getOrCreateCache(name).putAll(entries);
        for (Map.Entry<K, V> e : entries.entrySet())
            System.out.println("{\"cache\": \"" + name + "\", \"key\": " + json(e.getKey())
                + ", \"val\": " + json(e.getValue()) + "}");
    }

    /** Ids of names of one letter, all of the basic plane, and of some words. */
    private static String ids() {
        BinaryBasicIdMapper mapper = new BinaryBasicIdMapper(true);
        StringBuilder out = new StringBuilder("[");
        for (int c = 1; c < 0x10000; c++)
            out.append(c > 1 ? "," : "").append(mapper.fieldId(0, String.valueOf((char) c)));
        out.append("], \"words\": {");
        String[] words = {"\u039c\u0395\u0393\u0395\u0398\u039f\u03a3", "\u0130stanbul", "A\u03a3", "\u03a3A",
            "\ud801\udc00b", "\ud83d\ude00", "\ud835\udc00X", "Stra\u1e9ee", "I\u0307", "aB_c$9"};
        for (int i = 0; i < words.length; i++)
            out.append(i > 0 ? ", " : "").append(json(words[i])).append(": ").append(mapper.fieldId(0, words[i]));
        return out.append("}").toString();
    }

    // What it is

    static String json(Object value) {
        if (value == null)
            return "null";
        if (value instanceof Float)
            return "" + Float.floatToRawIntBits((Float) value);
        if (value instanceof Double)
            return "" + Double.doubleToRawLongBits((Double) value);
        if (value instanceof Character)
            return "" + (int) (Character) value;
        if (value instanceof BigDecimal)
            return json(((BigDecimal) value).toPlainString());
        if (value instanceof BigInteger)
            return json(value.toString());
        if (value instanceof Number || value instanceof Boolean)
            return value.toString();
        if (value instanceof Enum)
            return "" + ((Enum<?>) value).ordinal();
        if (value instanceof Timestamp)
            return nanoseconds(((Timestamp) value).toInstant());
        if (value instanceof Date)
            return "" + ((Date) value).getTime();
        if (value instanceof LocalDate)
            return "" + ((LocalDate) value).toEpochDay() * 86_400_000L;
        if (value instanceof LocalDateTime)
            return nanoseconds(((LocalDateTime) value).toInstant(ZoneOffset.UTC));
        if (value instanceof Instant)
            return nanoseconds((Instant) value);
        if (value instanceof ZonedDateTime)
            return nanoseconds(((ZonedDateTime) value).toInstant());
        if (value instanceof OffsetDateTime)
            return nanoseconds(((OffsetDateTime) value).toInstant());
        if (value instanceof LocalTime)
            return "" + ((LocalTime) value).toNanoOfDay();
        if (value instanceof Duration)
            return "" + ((Duration) value).toNanos();
        if (value instanceof Collection)
            return list(((Collection<?>) value).toArray());
        if (value instanceof Map) {
            Map<?, ?> map = (Map<?, ?>) value;
            return "{\"keys\": " + list(map.keySet().toArray()) + ", \"values\": " + list(map.values().toArray()) + "}";
        }
        if (value.getClass().isArray()) {
            Object[] boxed = new Object[java.lang.reflect.Array.getLength(value)];
            for (int i = 0; i < boxed.length; i++)
                boxed[i] = java.lang.reflect.Array.get(value, i);
            return list(boxed);
        }
        if (value instanceof String || value instanceof UUID)
            return text(value.toString());
        if (value.getClass().getName().startsWith("java."))
            return "null";
        return fields(value);
    }

    private static String nanoseconds(Instant at) {
        return "" + BigInteger.valueOf(at.getEpochSecond()).multiply(BigInteger.valueOf(1_000_000_000L))
            .add(BigInteger.valueOf(at.getNano()));
    }

    private static String list(Object[] items) {
        StringBuilder out = new StringBuilder("[");
        for (Object item : items)
            out.append(out.length() > 1 ? ", " : "").append(json(item));
        return out.append("]").toString();
    }

    private static String text(String value) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : value.toCharArray())
            out.append(String.format("\\u%04x", (int) c));
        return out.append("\"").toString();
    }

    private static String fields(Object value) {
        StringBuilder out = new StringBuilder("{");
        try {
            for (java.lang.reflect.Field field : value.getClass().getDeclaredFields()) {
                field.setAccessible(true);
                Object inner = field.get(value);
                if (inner == value || inner instanceof Foreign || field.getName().startsWith("cycle"))
                    continue;
                out.append(out.length() > 1 ? ", " : "").append(text(field.getName())).append(": ").append(json(inner));
            }
        }
        catch (IllegalAccessException e) {
            throw new IllegalStateException(e);
        }
        return out.append("}").toString();
    }

    // Random values

    static String word() {
        StringBuilder out = new StringBuilder();
        int[] starts = {0, 'a', 0x100, 0x4e00, 0x1f600};
        for (int i = random.nextInt(6); i > 0; i--)
            out.appendCodePoint(starts[random.nextInt(starts.length)] + random.nextInt(26));
        return out.toString();
    }

    static BigInteger big() {
        return new BigInteger(random.nextInt(300), random).multiply(BigInteger.valueOf(random.nextInt(3) - 1));
    }

    static BigDecimal decimal() {
        return new BigDecimal(big(), random.nextInt(40) - 20);
    }

    static LocalDate date() {
        return LocalDate.ofEpochDay(random.nextInt(200_000) - 100_000);
    }

    static LocalTime time() {
        long[] units = {1, 1_000_000_000L, 60_000_000_000L, 3_600_000_000_000L};
        long unit = units[random.nextInt(units.length)];
        return LocalTime.ofNanoOfDay((long) (random.nextDouble() * 86_400e9) / unit * unit);
    }

    static Timestamp timestamp() {
        Timestamp made = new Timestamp(random.nextInt() * 1000L);
        made.setNanos(random.nextInt(1_000_000_000));
        return made;
    }

    static List<Integer> integers(int least) {
        List<Integer> made = new ArrayList<>();
        for (int i = random.nextInt(4) + least; i > 0; i--)
            made.add(random.nextInt());
        return made;
    }

    static List<String> words() {
        List<String> made = new ArrayList<>();
        for (int i = random.nextInt(4); i > 0; i--)
            made.add(word() + i);
        return made;
    }

    /** A list, in one of the classes that lists have. */
    @SafeVarargs static Collection<Integer> any(List<Integer> items, Function<List<Integer>, Collection<Integer>>... kinds) {
        return kinds[random.nextInt(kinds.length)].apply(items);
    }
}

enum Shade { LIGHT, DARK { @Override public String toString() { return "dark"; } } }

class Part {
    int number = JavaRandom.random.nextInt();
    String text = JavaRandom.word();
    LocalDate day = JavaRandom.date();
    BigInteger big = JavaRandom.big();
    List<BigInteger> bigs = List.of(big, JavaRandom.big(), big);
}

/** A field of every kind; of those that can be null, one of so many is. */
class Kinds {
    byte aByte = (byte) JavaRandom.random.nextInt();
    short aShort = (short) JavaRandom.random.nextInt();
    int anInt = JavaRandom.random.nextInt();
    long aLong = JavaRandom.random.nextLong();
    float aFloat = JavaRandom.random.nextFloat();
    double aDouble = JavaRandom.random.nextGaussian();
    char aChar = (char) JavaRandom.random.nextInt(0x10000);
    boolean aBoolean = JavaRandom.random.nextBoolean();
    Long boxed;
    String string;
    UUID uuid;
    Date date;
    java.sql.Date sqlDate;
    Timestamp timestamp;
    Time time;
    BigDecimal decimal;
    BigInteger bigInteger;
    LocalDate localDate;
    LocalDateTime localDateTime;
    LocalTime localTime;
    Instant instant;
    OffsetDateTime offset;
    ZonedDateTime zoned;
    Duration duration;
    Shade shade;
    byte[] bytes;
    int[] ints;
    double[] doubles;
    char[] chars;
    String[] strings;
    LocalDate[] days;
    java.sql.Date[] sqlDates;
    Object[] objects;
    int[][] table;
    List<Integer> list;
    Object anyList;
    Object anyWords;
    List<List<LocalDate>> deep;
    TreeSet<String> sorted;
    Map<String, Long> map;
    Map<Integer, BigInteger> mapOf;
    TreeMap<String, Integer> sortedMap;
    Part part;
    List<Part> parts;
    List<Integer> sharedList;
    List<Integer> sharedListAgain;
    Map<String, Long> sharedMap;
    Map<String, Long> sharedMapAgain;
    Object[] sharedArray;
    Object[] sharedArrayAgain;
    Part sharedPart;
    Part sharedPartAgain;
    List<Object[]> sharedItems;
    String \u039c\u0395\u0393\u0395\u0398\u039f\u03a3;
    int \u0130stanbul = JavaRandom.random.nextInt();

    Kinds(int nullEvery) {
        Random random = JavaRandom.random;
        for (java.lang.reflect.Field field : Kinds.class.getDeclaredFields()) {
            if (field.getType().isPrimitive() || nullEvery > 0 && random.nextInt(nullEvery) == 0)
                continue;
            try {
                field.set(this, made(field.getName(), random));
            }
            catch (IllegalAccessException e) {
                throw new IllegalStateException(e);
            }
        }
    }

    private Object made(String name, Random random) {
        switch (name) {
            case "boxed": return random.nextLong();
            case "uuid": return new UUID(random.nextLong(), random.nextLong());
            case "date": return new Date(random.nextLong());
            case "sqlDate": return new java.sql.Date(random.nextLong());
            case "timestamp": return JavaRandom.timestamp();
            case "time": return new Time(random.nextInt(86_400_000));
            case "decimal": return JavaRandom.decimal();
            case "bigInteger": return JavaRandom.big();
            case "localDate": return JavaRandom.date();
            case "localDateTime": return LocalDateTime.of(JavaRandom.date(), JavaRandom.time());
            case "localTime": return JavaRandom.time();
            case "instant": return JavaRandom.timestamp().toInstant();
            case "offset": return OffsetDateTime.of(JavaRandom.date(), JavaRandom.time(),
                ZoneOffset.ofTotalSeconds(random.nextInt(60_000) - 30_000 >> random.nextInt(4)));
            case "zoned": return ZonedDateTime.of(JavaRandom.date(), JavaRandom.time(),
                random.nextBoolean() ? ZoneId.of("Europe/Warsaw") : ZoneOffset.ofHours(random.nextInt(9) - 4));
            case "duration": return Duration.ofNanos(random.nextLong());
            case "shade": return Shade.values()[random.nextInt(2)];
            case "bytes": byte[] bytes = new byte[random.nextInt(5)]; random.nextBytes(bytes); return bytes;
            case "ints": return random.ints(random.nextInt(4)).toArray();
            case "doubles": return random.doubles(random.nextInt(4)).toArray();
            case "chars": return JavaRandom.word().toCharArray();
            case "strings": return JavaRandom.words().toArray(new String[0]);
            case "days": return new LocalDate[] {JavaRandom.date(), JavaRandom.date()};
            case "sqlDates": return new java.sql.Date[] {new java.sql.Date(random.nextLong())};
            case "objects": return JavaRandom.integers(0).toArray();
            case "table": return new int[][] {random.ints(2).toArray(), random.ints(3).toArray()};
            case "list": return JavaRandom.integers(0);
            case "anyList": return JavaRandom.any(JavaRandom.integers(1), List::copyOf, Collections::unmodifiableList,
                HashSet::new, TreeSet::new, LinkedList::new, ArrayDeque::new, Vector::new, Collections::unmodifiableCollection,
                x -> Arrays.asList(x.toArray(new Integer[0])), x -> new ArrayList<>(x), x -> List.of(x.get(0)),
                x -> Collections.nCopies(3, x.get(0)), x -> Collections.singleton(x.get(0)), x -> Collections.emptyList());
            case "anyWords": return JavaRandom.random.nextBoolean() ? List.copyOf(JavaRandom.words())
                : Arrays.asList(JavaRandom.words().toArray(new String[0]));
            case "deep": return List.of(List.of(JavaRandom.date()), List.of(), List.of(JavaRandom.date(), JavaRandom.date()));
            case "sorted": return new TreeSet<>(JavaRandom.words());
            case "map": return new HashMap<>(Map.of(JavaRandom.word() + "k", random.nextLong()));
            case "mapOf": return Map.of(random.nextInt(), JavaRandom.big());
            case "sortedMap": return new TreeMap<>(Map.of("b" + JavaRandom.word(), random.nextInt(), "a", random.nextInt()));
            case "part": return new Part();
            case "parts": return new ArrayList<>(List.of(new Part(), new Part()));
            case "sharedList": return JavaRandom.integers(0);
            case "sharedListAgain": return sharedList;
            case "sharedMap": return new HashMap<>(Map.of("m", random.nextLong()));
            case "sharedMapAgain": return sharedMap;
            case "sharedArray": return new Object[] {JavaRandom.word(), JavaRandom.word()};
            case "sharedArrayAgain": return sharedArray;
            case "sharedPart": return new Part();
            case "sharedPartAgain": return sharedPart;
            case "sharedItems": Object[] item = {random.nextInt()}; return new ArrayList<>(List.of(item, item));
            default: return JavaRandom.word();
        }
    }
}

/** A key whose second field may be null. */
class Pair {
    long id;
    String name;
    Integer number;

    Pair(int k, String ignored) {
        id = k;
        name = k % 3 == 0 ? null : "n" + k;
        number = k % 4 == 0 ? null : k;
    }
}

class Few {
    int number;
    LocalDate day = JavaRandom.date();

    Few(int k) {
        number = k;
    }
}

/** Beside two fields that can be read some that cannot. */
class Foreign {
    int number;
    String text = JavaRandom.word();
    URI uri = URI.create("http://example.com/");
    Class<?> kind = Foreign.class;
    Object immutable = List.of(Shade.DARK);
    Foreign self;
    List<Object> cycleList = new ArrayList<>();
    Object[] cycleArray = new Object[1];
    Child cycleChild;

    Foreign(int k) {
        number = k;
        self = this;
        cycleList.add(cycleList);
        cycleArray[0] = this;
        cycleChild = new Child(this);
    }
}

class Child {
    int number = 5;
    Foreign parent;

    Child(Foreign parent) {
        this.parent = parent;
    }
}

/** Times that no 64 bits hold in nanoseconds. */
class Far {
    int number;
    Timestamp timestamp;
    LocalDateTime localDateTime;

    Far(int k) {
        number = k;
        timestamp = new Timestamp((k % 2 == 0 ? 1 : -1) * (9_223_372_036_854L + k - 5));
        timestamp.setNanos(k % 3 == 0 ? 999_999_999 : timestamp.getNanos());
        localDateTime = LocalDateTime.of(k * 500 - 3000, 1, 1, 0, 0, 0, k);
    }
}
