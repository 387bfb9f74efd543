import java.math.BigDecimal;
import java.sql.Time;
import java.sql.Timestamp;
import java.util.Collections;
import java.util.Date;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.LinkedList;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import org.apache.ignite.Ignition;
import org.apache.ignite.client.ClientCache;
import org.apache.ignite.client.IgniteClient;

/**
 * Writes rows of every type as Java stores them: JavaRows ADDRESS CACHE ROWS NULL_EVERY.
 */
public class JavaRows {
    public static void main(String[] args) throws Exception {
        int rows = Integer.parseInt(args[2]);
        int nullEvery = Integer.parseInt(args[3]);
        Map<Long, Everything> entries = new LinkedHashMap<>();
        for (int k = 0; k < rows; k++)
            entries.put((long) k, nullEvery > 0 && k % nullEvery == 0 ? new Everything() : new Everything(k));
        try (IgniteClient client = Ignition.startClient(Connection.to(args[0]))) {
            ClientCache<Long, Everything> cache = client.getOrCreateCache(args[1]);
            cache.putAll(entries);
        }
    }
}

enum Colour { RED, GREEN, BLUE }

class Inner {
    int number;
    String text;
    double[] weights;

    Inner(int k) {
        number = -k;
        text = "inner " + k;
        weights = new double[k % 3];
        for (int i = 0; i < weights.length; i++)
            weights[i] = k / 4.0 + i;
    }
}

class Everything {
    byte aByte;
    short aShort;
    int anInt;
    long aLong;
    float aFloat;
    double aDouble;
    char aChar;
    boolean aBoolean;
    Byte boxedByte;
    Short boxedShort;
    Integer boxedInt;
    Long boxedLong;
    Float boxedFloat;
    Double boxedDouble;
    Character boxedChar;
    Boolean boxedBoolean;
    String string;
    UUID uuid;
    Date date;
    Timestamp timestamp;
    Time time;
    BigDecimal decimal;
    Colour colour;
    byte[] bytes;
    short[] shorts;
    int[] ints;
    long[] longs;
    float[] floats;
    double[] doubles;
    char[] chars;
    boolean[] booleans;
    String[] strings;
    UUID[] uuids;
    Date[] dates;
    Timestamp[] timestamps;
    Time[] times;
    BigDecimal[] decimals;
    Colour[] colours;
    Object[] objects;
    List<Integer> list;
    List<String> linked;
    Set<Long> set;
    List<Long> single;
    Map<String, Double> map;
    Inner inner;

    /** All references null. */
    Everything() {
    }

    Everything(int k) {
        int n = k % 4;
        aByte = (byte) (k * 7);
        aShort = (short) (k * 3001);
        anInt = k * 100_000_007;
        aLong = k * 1_000_000_000_000_007L;
        aFloat = k / 8f - 3;
        aDouble = k / 16.0 - 1e9;
        aChar = (char) (0x30 + k * 997);
        aBoolean = k % 2 == 1;
        boxedByte = (byte) -aByte;
        boxedShort = (short) -aShort;
        boxedInt = -anInt;
        boxedLong = -aLong;
        boxedFloat = -aFloat;
        boxedDouble = -aDouble;
        boxedChar = aChar;
        boxedBoolean = !aBoolean;
        string = "row " + k + " \u017c\u00f3\u0142\u0107 \ud83d\ude00".repeat(n);
        uuid = uuid(k);
        date = new Date(date(k));
        timestamp = timestamp(k);
        time = new Time(k * 61_000L);
        decimal = decimal(k);
        colour = Colour.values()[k % 3];
        bytes = new byte[n];
        shorts = new short[n];
        ints = new int[n];
        longs = new long[n];
        floats = new float[n];
        doubles = new double[n];
        chars = new char[n];
        booleans = new boolean[n];
        strings = new String[n];
        uuids = new UUID[n];
        dates = new Date[n];
        timestamps = new Timestamp[n];
        times = new Time[n];
        decimals = new BigDecimal[n];
        colours = new Colour[n];
        objects = new Object[n];
        list = new ArrayList<>();
        linked = new LinkedList<>();
        set = new LinkedHashSet<>();
        single = Collections.singletonList(aLong);
        map = new LinkedHashMap<>();
        for (int i = 0; i < n; i++) {
            bytes[i] = (byte) (200 + k + i);
            shorts[i] = (short) -(k + i);
            ints[i] = k - i * 1_000_000;
            longs[i] = k - i * 1_000_000_000_000L;
            floats[i] = k / 2f + i;
            doubles[i] = k / 4.0 - i;
            chars[i] = (char) (0x4e00 + k + i);
            booleans[i] = (k + i) % 2 == 0;
            strings[i] = "s" + k + "/" + i;
            uuids[i] = uuid(k + i);
            dates[i] = new Date(date(k + i));
            timestamps[i] = timestamp(k + i);
            times[i] = new Time((k + i) * 61_000L);
            decimals[i] = decimal(k + i);
            colours[i] = Colour.values()[(k + i) % 3];
            objects[i] = k * 10 + i;
            list.add(k + i);
            linked.add("l" + (k + i));
            set.add((long) k + i);
            map.put("k" + i, k + i / 2.0);
        }
        inner = new Inner(k);
    }

    private static UUID uuid(int k) {
        return new UUID(0xfedcba9876543210L - k, 0x8000000000000000L + k * 12345678901L);
    }

    private static long date(int k) {
        return (k - 20) * 100_000_000_123L;
    }

    private static Timestamp timestamp(int k) {
        Timestamp found = new Timestamp((k + 1) * 10_000_000_000L);
        found.setNanos(k * 1_001_001);
        return found;
    }

    /** Scales below, at and above zero; more digits than a long has. */
    private static BigDecimal decimal(int k) {
        return new BigDecimal("123456789012345678901234").multiply(new BigDecimal(k - 10)).scaleByPowerOfTen(5 - k);
    }
}
