import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Collections;
import java.util.Random;
import org.apache.ignite.Ignite;
import org.apache.ignite.IgniteDataStreamer;
import org.apache.ignite.Ignition;
import org.apache.ignite.configuration.IgniteConfiguration;
import org.apache.ignite.logger.NullLogger;
import org.apache.ignite.spi.discovery.tcp.TcpDiscoverySpi;
import org.apache.ignite.spi.discovery.tcp.ipfinder.vm.TcpDiscoveryVmIpFinder;

/**
 * A client node that streams rows {IMAGE, LABEL} for each line "CACHE ROWS ROW_BYTES" of its input;
 * prints "ROWS NANOSECONDS". Argument: address of the discovery of a server.
 */
public class JavaStream {
    public static void main(String[] args) throws Exception {
        TcpDiscoveryVmIpFinder finder = new TcpDiscoveryVmIpFinder();
        finder.setAddresses(Collections.singletonList(args[0]));
        IgniteConfiguration configuration = new IgniteConfiguration()
            .setClientMode(true)
            .setLocalHost("127.0.0.1")
            .setIgniteInstanceName("stream")
            .setWorkDirectory(args[1])
            .setPeerClassLoadingEnabled(false)
            .setMetricsLogFrequency(0)
            .setGridLogger(new NullLogger())
            .setDiscoverySpi(new TcpDiscoverySpi().setIpFinder(finder));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        java.io.PrintStream answers = System.out;
        System.setOut(System.err);
        try (Ignite ignite = Ignition.start(configuration)) {
            for (String line; (line = lines.readLine()) != null; ) {
                String[] words = line.split(" ");
                int rows = Integer.parseInt(words[1]);
                answers.println(rows + " " + stream(ignite, words[0], rows, Integer.parseInt(words[2])));
            }
        }
    }

    private static long stream(Ignite ignite, String cache, int rows, int rowBytes) {
        byte[] image = new byte[rowBytes];
        new Random(20).nextBytes(image);
        long begin = System.nanoTime();
        try (IgniteDataStreamer<Long, Row> streamer = ignite.dataStreamer(cache)) {
            if (rowBytes > 100_000)
                streamer.perNodeBufferSize(4);
            for (long key = 0; key < rows; key++)
                streamer.addData(key, new Row(image, (int) (key % 10)));
        }
        return System.nanoTime() - begin;
    }
}

class Row {
    byte[] image;
    int label;

    Row(byte[] image, int label) {
        this.image = image;
        this.label = label;
    }
}
