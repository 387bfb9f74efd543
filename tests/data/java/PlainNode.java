import java.util.ArrayList;
import java.util.List;
import org.apache.ignite.Ignite;
import org.apache.ignite.Ignition;
import org.apache.ignite.binary.BinaryBasicIdMapper;
import org.apache.ignite.configuration.BinaryConfiguration;
import org.apache.ignite.configuration.ClientConnectorConfiguration;
import org.apache.ignite.configuration.DataRegionConfiguration;
import org.apache.ignite.configuration.DataStorageConfiguration;
import org.apache.ignite.configuration.IgniteConfiguration;
import org.apache.ignite.spi.communication.tcp.TcpCommunicationSpi;
import org.apache.ignite.spi.discovery.tcp.TcpDiscoverySpi;
import org.apache.ignite.spi.discovery.tcp.ipfinder.vm.TcpDiscoveryVmIpFinder;

/**
 * A member of a cluster as Ignite sets it up, without anything of ours: FOLDER PERSISTENT PORT...
 *
 * <p>The first port is its own; the others are those of the other members. It ends with its input.
 */
public class PlainNode {
    public static void main(String[] args) throws Exception {
        serve(start(args));
    }

    /** Say that the member is ready, and end it with the input. */
    static void serve(Ignite ignite) throws Exception {
        System.out.println("READY " + ignite.version());
        while (System.in.read() >= 0) {
        }
        Ignition.stopAll(true);
    }

    static Ignite start(String[] args) {
        return Ignition.start(configuration(args));
    }

    static IgniteConfiguration configuration(String[] args) {
        int port = Integer.parseInt(args[2]);
        List<String> members = new ArrayList<>();
        for (int i = 2; i < args.length; i++) {
            members.add("127.0.0.1:" + (Integer.parseInt(args[i]) + 1));
        }
        TcpDiscoverySpi discovery = new TcpDiscoverySpi().setLocalPort(port + 1);
        discovery.setLocalPortRange(0);
        discovery.setIpFinder(new TcpDiscoveryVmIpFinder().setAddresses(members));
        TcpCommunicationSpi communication = new TcpCommunicationSpi();
        communication.setLocalPort(port + 2);
        communication.setLocalPortRange(0);
        BinaryConfiguration binary = new BinaryConfiguration();
        if (System.getenv("PLAIN_EXACT_NAMES") != null) {
            // Ids of types and fields from their names as written, not in small letters.
            binary.setIdMapper(new BinaryBasicIdMapper(false));
        }
        return new IgniteConfiguration()
            .setBinaryConfiguration(binary)
            .setLocalHost("127.0.0.1")
            .setIgniteInstanceName("plain-" + port)
            .setConsistentId("plain-" + port)
            .setWorkDirectory(args[0])
            .setConnectorConfiguration(null)
            .setDiscoverySpi(discovery)
            .setCommunicationSpi(communication)
            .setDataStorageConfiguration(new DataStorageConfiguration()
                .setDefaultDataRegionConfiguration(new DataRegionConfiguration()
                    .setPersistenceEnabled(Boolean.parseBoolean(args[1]))
                    .setMaxSize(512L << 20)))
            .setClientConnectorConfiguration(new ClientConnectorConfiguration()
                .setHost("127.0.0.1").setPort(port).setPortRange(0));
    }
}
