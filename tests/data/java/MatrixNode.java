import java.math.BigDecimal;
import java.sql.Timestamp;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import org.apache.ignite.Ignite;
import org.apache.ignite.IgniteCache;
import org.apache.ignite.Ignition;
import org.apache.ignite.cache.CacheAtomicityMode;
import org.apache.ignite.cache.CacheMode;
import org.apache.ignite.cache.affinity.AffinityKey;
import org.apache.ignite.cache.affinity.rendezvous.RendezvousAffinityFunction;
import org.apache.ignite.cache.query.annotations.QuerySqlField;
import org.apache.ignite.configuration.CacheConfiguration;
import org.apache.ignite.configuration.ClientConnectorConfiguration;
import org.apache.ignite.configuration.IgniteConfiguration;
import org.apache.ignite.internal.IgniteVersionUtils;
import org.apache.ignite.ssl.SslContextFactory;

/**
 * A member of a cluster with persistence, a login, TLS, and caches as the XML of Java programs configures them: FOLDER
 * PERSISTENT PORT... The environment has the folder of the key stores (MATRIX_STORES) and their password.
 */
public class MatrixNode {
    private static final int ROWS = 100;

    public static void main(String[] args) throws Exception {
        System.setProperty("IGNITE_WAL_MMAP", "false");  // versions before 2.11 cannot on a recent Java
        String folder = System.getenv("MATRIX_STORES");
        char[] password = System.getenv("MATRIX_PASSWORD").toCharArray();
        SslContextFactory tls = new SslContextFactory();
        tls.setKeyStoreType("PKCS12");
        tls.setTrustStoreType("PKCS12");
        tls.setKeyStoreFilePath(folder + "/server.p12");
        tls.setTrustStoreFilePath(folder + "/trust.p12");
        tls.setKeyStorePassword(password);
        tls.setTrustStorePassword(password);
        if (IgniteVersionUtils.VER.minor() < 9)
            tls.setProtocols("TLSv1.2");  // with 1.3 on a recent Java, 2.8 leaves the first message unread
        IgniteConfiguration configuration = PlainNode.configuration(args);
        configuration.getClientConnectorConfiguration().setSslEnabled(true).setSslClientAuth(true)
            .setUseIgniteSslContextFactory(false).setSslContextFactory(tls);
        configuration.setAuthenticationEnabled(true);
        configuration.getDataStorageConfiguration().setWalSegmentSize(16 << 20);
        configuration.setCacheConfiguration(caches().toArray(new CacheConfiguration[0]));
        Ignite ignite = Ignition.start(configuration);
        if (ignite.cluster().nodes().size() == args.length - 2) {
            ignite.cluster().active(true);
            fill(ignite);
        }
        PlainNode.serve(ignite);
    }

    private static List<CacheConfiguration<?, ?>> caches() {
        List<CacheConfiguration<?, ?>> found = new ArrayList<>();
        found.add(new CacheConfiguration<Long, Person>("Person").setIndexedTypes(Long.class, Person.class)
            .setAffinity(new RendezvousAffinityFunction(false, 16)).setBackups(1));
        found.add(new CacheConfiguration<Object, Object>("Everywhere").setCacheMode(CacheMode.REPLICATED));
        found.add(new CacheConfiguration<Object, Object>("Accounts").setGroupName("money")
            .setAtomicityMode(CacheAtomicityMode.TRANSACTIONAL).setAffinity(new RendezvousAffinityFunction(false, 8)));
        found.add(new CacheConfiguration<Object, Object>("Visits").setGroupName("money")
            .setAtomicityMode(CacheAtomicityMode.TRANSACTIONAL).setAffinity(new RendezvousAffinityFunction(false, 8)));
        return found;
    }

    private static void fill(Ignite ignite) {
        IgniteCache<Long, Person> people = ignite.cache("Person");
        Map<Object, Object> texts = new TreeMap<>();
        Map<Object, Object> visits = new java.util.LinkedHashMap<>();
        Map<Long, Person> all = new TreeMap<>();
        for (int i = 0; i < ROWS; i++) {
            all.put((long) i, new Person(i));
            texts.put("key " + i, i);
            visits.put(new AffinityKey<Object>(i, "group " + i % 3), new Person(i));
        }
        people.putAll(all);
        ignite.cache("Everywhere").putAll(texts);
        ignite.cache("Accounts").putAll(texts);
        ignite.cache("Visits").putAll(visits);
    }
}

enum Rank { PRIVATE, MAJOR, GENERAL }

class Person {
    @QuerySqlField(index = true)
    int age;
    @QuerySqlField
    String name;
    @QuerySqlField
    BigDecimal salary;
    @QuerySqlField
    Timestamp since;
    @QuerySqlField
    UUID badge;
    @QuerySqlField
    Rank rank;
    double[] scores;
    Object extra;

    Person(int i) {
        age = i;
        name = i % 10 == 0 ? null : "name " + i;
        salary = new BigDecimal(i + ".25");
        since = new Timestamp(1_000_000_000_000L + i);
        badge = new UUID(i, i);
        rank = Rank.values()[i % 3];
        scores = new double[] {i, i / 2.0};
    }
}
