import java.io.BufferedReader;
import java.io.InputStreamReader;
import javax.cache.Cache;
import org.apache.ignite.Ignition;
import org.apache.ignite.binary.BinaryObject;
import org.apache.ignite.cache.query.QueryCursor;
import org.apache.ignite.cache.query.ScanQuery;
import org.apache.ignite.client.IgniteClient;
import org.apache.ignite.configuration.ClientConfiguration;

/** Scans a cache of {IMAGE, LABEL} for each line "CACHE PAGE_SIZE" of its input; prints "ROWS NANOSECONDS". */
public class JavaScan {
    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        ClientConfiguration configuration = new ClientConfiguration().setAddresses(args[0]);
        try (IgniteClient client = Ignition.startClient(configuration)) {
            for (String line; (line = lines.readLine()) != null; ) {
                String[] words = line.split(" ");
                System.out.println(scan(client, words[0], Integer.parseInt(words[1])));
            }
        }
    }

    private static String scan(IgniteClient client, String cache, int pageSize) {
        ScanQuery<Long, BinaryObject> query = new ScanQuery<>();
        query.setPageSize(pageSize);
        long rows = 0;
        long bytes = 0;
        long begin = System.nanoTime();
        try (QueryCursor<Cache.Entry<Long, BinaryObject>> cursor =
                 client.cache(cache).withKeepBinary().query(query)) {
            for (Cache.Entry<Long, BinaryObject> entry : cursor) {
                byte[] image = entry.getValue().field("IMAGE");
                Integer label = entry.getValue().field("LABEL");
                rows += label >= 0 ? 1 : 0;
                bytes += image.length;
            }
        }
        long nanoseconds = System.nanoTime() - begin;
        if (bytes == 0)
            throw new IllegalStateException("no bytes");
        return rows + " " + nanoseconds;
    }
}
