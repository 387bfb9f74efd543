import org.apache.ignite.client.SslMode;
import org.apache.ignite.configuration.ClientConfiguration;

/**
 * How the programs connect: with TEST_STORES in the environment over TLS, with its key.p12 and trust.p12 and
 * TEST_STORES_PASSWORD, as TEST_USER with TEST_PASSWORD.
 */
class Connection {
    static ClientConfiguration to(String address) {
        ClientConfiguration made = new ClientConfiguration().setAddresses(address);
        String stores = System.getenv("TEST_STORES");
        if (stores == null)
            return made;
        String password = System.getenv("TEST_STORES_PASSWORD");
        return made.setSslMode(SslMode.REQUIRED)
            .setSslClientCertificateKeyStorePath(stores + "/key.p12")
            .setSslClientCertificateKeyStoreType("PKCS12")
            .setSslClientCertificateKeyStorePassword(password)
            .setSslTrustCertificateKeyStorePath(stores + "/trust.p12")
            .setSslTrustCertificateKeyStoreType("PKCS12")
            .setSslTrustCertificateKeyStorePassword(password)
            .setUserName(System.getenv("TEST_USER"))
            .setUserPassword(System.getenv("TEST_PASSWORD"));
    }
}
