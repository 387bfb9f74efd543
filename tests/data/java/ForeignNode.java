import java.io.Externalizable;
import java.io.IOException;
import java.io.ObjectInput;
import java.io.ObjectOutput;
import java.math.BigDecimal;
import java.sql.Timestamp;
import java.time.LocalDate;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.UUID;
import java.util.function.IntFunction;
import org.apache.ignite.Ignite;
import org.apache.ignite.IgniteCache;
import org.apache.ignite.binary.BinaryReader;
import org.apache.ignite.binary.BinaryWriter;
import org.apache.ignite.binary.Binarylizable;
import org.apache.ignite.cache.affinity.AffinityFunction;
import org.apache.ignite.cache.affinity.AffinityFunctionContext;
import org.apache.ignite.cache.affinity.AffinityKey;
import org.apache.ignite.cache.affinity.rendezvous.RendezvousAffinityFunction;
import org.apache.ignite.cluster.ClusterNode;
import org.apache.ignite.cache.query.annotations.QuerySqlField;
import org.apache.ignite.configuration.CacheConfiguration;
import org.apache.ignite.lang.IgniteBiTuple;
import org.apache.ignite.lang.IgniteUuid;

/**
 * A member with caches as Java programs make them: a cache for each kind of key, one for each odd kind of value, and
 * some that an affinity function of their own spreads. Each has ROWS entries, whose value has their number.
 */
public class ForeignNode {
    private static final int ROWS = 24;
    private static final List<CacheConfiguration> caches = new ArrayList<>();
    private static final List<Runnable> fills = new ArrayList<>();
    private static Ignite ignite;

    public static void main(String[] args) throws Exception {
        ignite = PlainNode.start(args);
        if (ignite.cluster().nodes().size() == args.length - 2) {
            define();
            ignite.getOrCreateCaches(caches);  // at once, which takes the cluster as long as a single one
            fills.forEach(Runnable::run);
        }
        PlainNode.serve(ignite);
    }

    private static void define() {
        keys("LONG", i -> (long) i);
        keys("STRING", i -> "key " + i);
        keys("UUID", i -> new UUID(i, ~i));
        keys("TIMESTAMP", i -> new Timestamp(i * 1_000L));
        keys("LOCAL_DATE", i -> LocalDate.of(2024, 5, i + 1));
        keys("DECIMAL", i -> new BigDecimal(i + ".5"));
        keys("BYTES", i -> new byte[] {(byte) i, 1});
        keys("PAIR", i -> new Pair(i, "right " + i));
        keys("TWO_CLASSES", i -> i % 2 == 0 ? new Pair(i, "right") : new Single(i));
        keys("AFFINITY", i -> new AffinityKey<Object>(i, "group " + i % 3));
        keys("AFFINITY_PAIR", i -> new AffinityKey<Object>(new Pair(i, null), (long) i));
        keys("AFFINITY_NULL", i -> new AffinityKey<Object>(i));
        keys("TUPLE", i -> new IgniteBiTuple<Object, Object>(i, "second"));
        keys("INTS_AND_LONGS", i -> i % 2 == 0 ? (Object) (i / 2) : (Object) (long) (i / 2));
        keys("LONGS_AND_STRINGS", i -> i % 2 == 0 ? (Object) (long) i : (Object) ("key " + i));
        keys("EXTERNALIZABLE", i -> new Own(i));
        keys("RAW", i -> new Raw(i));
        keys("IGNITE_UUID", i -> new IgniteUuid(new UUID(1, 2), i));
        values("NO_FIELDS", i -> new Empty());
        values("SOME_NO_FIELDS", i -> i % 2 == 0 ? new Pair(i, "right") : new Empty());
        values("PLAIN_OF_TWO", i -> i % 2 == 0 ? (Object) i : (Object) ("text " + i));
        values("SOME_RAW", i -> i % 2 == 0 ? new Pair(i, "right") : new Raw(i));
        values("ODD_FIELDS", Odd::new);
        values("NULL_FIELD", i -> new Pair(i, null));
        CacheConfiguration<Object, Object> people = plain("People");
        people.setIndexedTypes(Long.class, Human.class);
        cache(people, i -> (long) i, Human::new);
        cache(new CacheConfiguration<>("OWN_AFFINITY").setAffinity(new Own.Affinity(7)), i -> (long) i, Pair::of);
        cache(new CacheConfiguration<>("OWN_AFFINITY_TEXTS").setAffinity(new Own.Affinity(32)), i -> "key " + i, Pair::of);
    }

    private static void keys(String name, IntFunction<Object> key) {
        cache(plain("KEYS_" + name), key, Pair::of);
    }

    private static void values(String name, IntFunction<Object> value) {
        cache(plain("VALUES_" + name), i -> (long) i, value);
    }

    private static CacheConfiguration<Object, Object> plain(String name) {
        return new CacheConfiguration<>(name).setAffinity(new RendezvousAffinityFunction(false, 16));
    }

    private static void cache(CacheConfiguration<Object, Object> made, IntFunction<Object> key, IntFunction<Object> value) {
        caches.add(made);
        fills.add(() -> {
            IgniteCache<Object, Object> cache = ignite.cache(made.getName());
            for (int i = 0; i < ROWS; i++)
                cache.put(key.apply(i), value.apply(i));
        });
    }
}

class Pair {
    int left;
    String right;

    Pair(int left, String right) {
        this.left = left;
        this.right = right;
    }

    static Pair of(int i) {
        return new Pair(i, i % 3 == 0 ? null : "right " + i);
    }
}

enum Rank { PRIVATE, MAJOR, GENERAL }

/** Some fields are columns of a table. */
class Human {
    @QuerySqlField(index = true)
    int age;
    @QuerySqlField
    BigDecimal salary;
    @QuerySqlField
    Rank rank;
    @QuerySqlField
    Pair pair;
    @QuerySqlField
    double[] scores;
    @QuerySqlField
    List<Integer> years;
    Rank inner;
    String hidden;

    Human(int i) {
        age = i;
        salary = new BigDecimal(i + ".25");
        rank = Rank.values()[i % 3];
        pair = Pair.of(i);
        scores = new double[] {i, i / 2.0};
        years = new ArrayList<>(Collections.nCopies(i % 3, i));
        inner = rank;
        hidden = "hidden " + i;
    }
}

class Single {
    int left;

    Single(int left) {
        this.left = left;
    }
}

class Empty {
}

/** Fields of classes that others cannot read, beside one that they can. */
class Odd {
    int left;
    Object nothing;
    AffinityKey<Object> pair;
    IgniteUuid uuid;
    Class<?> type;
    Own own;

    Odd(int i) {
        left = i;
        pair = new AffinityKey<>(i, "group");
        uuid = new IgniteUuid(new UUID(1, 2), i);
        type = String.class;
        own = new Own(i);
    }
}

class Own implements Externalizable {
    int number;

    public Own() {
    }

    Own(int number) {
        this.number = number;
    }

    @Override
    public void writeExternal(ObjectOutput out) throws IOException {
        out.writeInt(number);
    }

    @Override
    public void readExternal(ObjectInput in) throws IOException {
        number = in.readInt();
    }

    @Override
    public int hashCode() {
        return number;
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Own && ((Own) other).number == number;
    }

    /** Keys by their hash code backwards, and partitions to the nodes by their number. */
    static class Affinity implements AffinityFunction {
        private static final long serialVersionUID = 1L;
        private final int count;

        Affinity(int count) {
            this.count = count;
        }

        @Override
        public void reset() {
        }

        @Override
        public int partitions() {
            return count;
        }

        @Override
        public int partition(Object key) {
            return count - 1 - Math.floorMod(key.hashCode(), count);
        }

        @Override
        public List<List<ClusterNode>> assignPartitions(AffinityFunctionContext context) {
            List<ClusterNode> nodes = context.currentTopologySnapshot();
            List<List<ClusterNode>> found = new ArrayList<>();
            for (int i = 0; i < count; i++)
                found.add(Collections.singletonList(nodes.get(i % nodes.size())));
            return found;
        }

        @Override
        public void removeNode(UUID node) {
        }
    }
}

class Raw implements Binarylizable {
    int number;

    Raw() {
    }

    Raw(int number) {
        this.number = number;
    }

    @Override
    public void writeBinary(BinaryWriter writer) {
        writer.rawWriter().writeInt(number);
    }

    @Override
    public void readBinary(BinaryReader reader) {
        number = reader.rawReader().readInt();
    }
}
